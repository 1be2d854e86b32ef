"""The command verify: what it finds in damaged datasets, what it repairs to the same bytes, and what it cannot.

In the last of them every CRC, SHA-256 and count is right: they were written by stages with a defect.
"""

import json
import shutil
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from etl.errors import DataError, EnvironmentFailure
from etl.formats.example import parse
from etl.formats.parquet_tables import read_facts
from etl.normalized.part_writer import PartWriter
from etl.normalized.parts import Origin, read_entry, rows_place
from etl.slices.manifest import build_manifest
from etl.slices.writer import SourcedExample, write_slice
from etl.stages.layout import slices_stage
from etl.storage.place import Place, open_place
from etl.verify.findings import Finding, Outcome, What
from etl.verify.repair import Repair
from etl.verify.target import Target
from mapreduce import normalize as normalize_module
from mapreduce import shard as shard_module
from mapreduce.verify import Verify
from tests.lib.commands import contents, copy_some, failed, flip_bit, succeeded
from tests.lib.generations import change_parts
from tests.lib.in_process import ringslice_here
from tests.lib.inline import normalize_here, run_here, shard_here

pytestmark = pytest.mark.integration

Damage = tuple[Any, ...]  # a function of the root and more, and what it gets
Things = set[tuple[str, str]]

FIRST, SECOND = (f"train/train-0000{number}-of-00002" for number in range(2))
TEST, VALIDATION = (f"{split}/{split}-00000-of-00001" for split in ("test", "validation"))
SLICES = "slices/default"
PIPELINE = ("-r", "inline", "--size", 8, "--color", "gray", "--format", "png", "--workers", 2, "--pack-size", "3KB")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """60 digits, two copies of the first one, and one file that is not an image."""
    folder = copy_some(digits, tmp_path_factory.mktemp("source"), "012", slice(20))
    for copy in ("0/copy.png", "2/copy.png"):
        shutil.copy(sorted((folder / "0").iterdir())[0], folder / copy)
    (folder / "1" / "bad.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in a root of several packs and two training slices."""
    root = tmp_path_factory.mktemp("whole") / "root"
    succeeded(ringslice_here("pipeline", source, root, *PIPELINE, "--max-rejects", 0.1))
    shutil.rmtree(root / "verified")
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy of ``whole``, to be damaged."""
    return shutil.copytree(whole, tmp_path / "root")


def verify(root: Path, *words: str) -> tuple[Things, str]:
    """The findings of verify, and the error it ends with (empty if there are none)."""
    given, error = dict(pairwise(words)), ""
    folder = Path(given.get("--to", root / "verified" / given.get("--name", "default")))
    try:
        run_here(Verify, root, *words)
    except DataError as raised:
        error = str(raised)
    marker = json.loads((folder / "verification.json").read_text())
    found = {(each["what"], each["name"]) for each in marker["findings"]}
    assert bool(found) == bool(error)
    assert all(each["line"] in error for each in marker["findings"])
    return found, error


def flip(root: Path, name: str, position: int) -> None:
    flip_bit(root / name, position)


def remove(root: Path, *patterns: str) -> None:
    for path in [path for pattern in patterns for path in root.glob(pattern)]:
        path.unlink()


def spoil(root: Path, *names: str) -> None:
    for name in names:
        (root / name).write_bytes(b"?")


def cut_at_a_record(root: Path) -> None:
    last = int((root / INDEX_FILE).read_text().splitlines()[-1].split()[0])
    (root / SLICE_FILE).write_bytes((root / SLICE_FILE).read_bytes()[:last])


def exchange(root: Path, ending: str) -> None:
    one, other = (root / SLICES / f"{name}.{ending}" for name in (FIRST, SECOND))
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


def damage(root: Path, *damages: Damage) -> None:
    for function, *words in damages:
        function(root, *words)


ALL_SLICES, ALL_TABLES = (FIRST, SECOND, TEST, VALIDATION), ("examples", "blocks", "class_counts", "departed")
SLICE, INDEX = ("slice", FIRST), ("index", FIRST)
TABLES = {("table", f"{name}.parquet") for name in ALL_TABLES}
SLICE_FILE, INDEX_FILE = f"{SLICES}/{FIRST}.tfrecord", f"{SLICES}/{FIRST}.idx"
TABLE_FILES = [f"{SLICES}/{name}.parquet" for name in ALL_TABLES]
PART, PART_ROWS = "normalized/parts/pack-00001.tfrecord", "normalized/parts/pack-00001.parquet"

REPAIRABLE: dict[str, tuple[list[Damage], Things]] = {
    "bit of an image": ([(flip, SLICE_FILE, 150)], {SLICE}),
    "slices and indexes exchanged": (
        [(exchange, "tfrecord"), (exchange, "idx")],
        {SLICE, INDEX, ("slice", SECOND), ("index", SECOND)},
    ),
    "bit of an index": ([(flip, INDEX_FILE, 2)], {INDEX}),
    "slice and index missing": ([(remove, SLICE_FILE, INDEX_FILE)], {SLICE, INDEX}),
    "bit of examples": ([(flip, f"{SLICES}/examples.parquet", 200)], {("table", "examples.parquet")}),
    "tables missing": ([(remove, *TABLE_FILES)], TABLES),
    "all slices and tables": (
        [(spoil, *(f"{SLICES}/{name}.tfrecord" for name in ALL_SLICES), *TABLE_FILES)],
        {("slice", name) for name in ALL_SLICES} | TABLES,
    ),
    "rows missing": ([(remove, PART_ROWS)], {("rows", "pack-00001")}),
    "bit of a part": ([(flip, PART, 300)], {("part", "pack-00001")}),
    "part and its rows": ([(remove, PART, PART_ROWS)], {("part", "pack-00001"), ("rows", "pack-00001")}),
    "slice and part": ([(remove, PART), (cut_at_a_record,)], {SLICE, ("part", "pack-00001")}),
    "rejects": ([(remove, "normalized/rejects/*")], {("rejects", "pack-00001")}),
}


@pytest.mark.witness
def test_a_sound_dataset_has_no_findings(root: Path, source: Path) -> None:
    before = contents(root)
    assert verify(root, "--every-stage") == (set(), "")
    assert {name: data for name, data in contents(root).items() if not name.startswith("verified/")} == before
    marker = json.loads((root / "verified/default/verification.json").read_text())
    assert marker["counts"]["examples"] == marker["counts"]["good"] == 62
    duplicates = pq.read_table(root / "verified/default/duplicates.parquet").to_pylist()
    first = sorted(path.name for path in (source / "0").iterdir())[0]
    assert [row["key"] for row in duplicates] == [f"0/{first}", "0/copy.png", "2/copy.png"]
    across = {"across_splits": int(len({row["split"] for row in duplicates}) > 1), "across_classes": 1}
    assert marker["duplicates"] == {"contents": 1, "examples": 3, **across}


@pytest.mark.witness
@pytest.mark.parametrize("name", REPAIRABLE)
def test_damage_is_found_and_repaired_to_the_same_bytes(name: str, whole: Path, root: Path) -> None:
    damages, expected = REPAIRABLE[name]
    damage(root, *damages)
    found, _ = verify(root, "--every-stage")
    assert {what for what, _ in found} == {what for what, _ in expected}
    assert expected <= found
    assert verify(root, "--every-stage", "--repair") == (set(), "")
    shutil.rmtree(root / "verified")
    assert contents(root) == contents(whole)


def test_a_damaged_part_that_was_not_looked_for_is_repaired_for_a_slice(whole: Path, root: Path) -> None:
    damage(root, (spoil, PART, "normalized/parts/pack-00000.tfrecord"), (remove, SLICE_FILE))
    assert verify(root)[0] == {SLICE}
    assert verify(root, "--repair") == (set(), "")
    shutil.rmtree(root / "verified")
    assert contents(root) == contents(whole)


TAR = "raw/packs/pack-00001.tar"


@pytest.mark.parametrize(
    ("damages", "left", "why"),
    [
        ([(flip, TAR, 600)], {("pack", "pack-00001")}, "it is the only copy of its images here"),
        ([(flip, "raw/packs/pack-00000.parquet", 200)], {("list", "pack-00000")}, "the only list of its pack's images"),
        ([(spoil, f"{SLICES}/train/notes")], {("stray", "train/notes")}, "is not deleted"),
        (
            [(spoil, PART), (flip, TAR, 600), (remove, SLICE_FILE)],
            {("pack", "pack-00001"), ("part", "pack-00001"), SLICE},
            "pack-00001 is damaged too",
        ),
        (
            [(flip, PART, 300), (flip, TAR, 600), (flip, INDEX_FILE, 2)],
            {("pack", "pack-00001"), ("part", "pack-00001")},
            "its pack is damaged too",
        ),
    ],
    ids=["pack", "list", "stray", "slice, part and pack", "part and pack"],
)
def test_what_cannot_be_repaired_is_listed_with_the_reason(
    damages: list[Damage], left: Things, why: str, root: Path
) -> None:
    damage(root, *damages)
    found, error = verify(root, "--every-stage", "--repair")
    assert found == left
    for what, name in left:
        assert f"{what} {name} is not repaired: " in error
    assert why in error


def test_slices_of_another_root_are_found(source: Path, root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    succeeded(ringslice_here("pipeline", source, other, *PIPELINE, "--max-rejects", 0.1, "--seed", 1, "--fit", "exact"))
    shutil.copy(other / SLICE_FILE, root / SLICE_FILE)
    assert verify(root)[0] == {SLICE}, "one slice of the same name"
    shutil.rmtree(root / SLICES)
    shutil.copytree(other / SLICES, root / SLICES)
    assert verify(root, "--repair")[0] == {("manifest", "manifest.json")}, "all of them"


def test_runners_find_the_same(root: Path) -> None:
    exchange(root, "tfrecord")
    before = contents(root)
    assert verify(root, "--to", str(root.parent / "mine"))[0] == {SLICE, ("slice", SECOND)}
    for taken in (root / "slices/new", root / "verified/new", root / "runs"):
        result = ringslice_here("verify", root, "--to", taken)
        failed(result, 2, f"{taken} lies among the files of a dataset; give a place outside of ")
    assert contents(root) == before
    results = []
    for runner in ("inline", "local"):
        result = ringslice_here("verify", root, "-r", runner, "--json")
        failed(result, 1, "verification failed, 2 findings:")
        assert json.loads(result.stdout)["findings"] == {"slice": 2}
        results.append(contents(root / "verified/default", "run.json"))
    assert results[0] == results[1]
    repaired = json.loads(succeeded(ringslice_here("verify", root, "--repair", "--json")).stdout)["repaired"]
    assert repaired == [f"slice {FIRST}", f"slice {SECOND}"]


def test_two_repairs_exclude_each_other(root: Path) -> None:
    slices = slices_stage(open_place(str(root)), "default")
    cut_at_a_record(root)
    before = contents(root)
    with slices.lease(), pytest.raises(EnvironmentFailure, match="is locked by"):
        verify(root, "--repair")
    shutil.rmtree(root / "verified")
    assert contents(root) == before
    assert verify(root, "--repair") == (set(), "")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (What.SLICE, ("shard", "--workers", 1)),
        (What.PART, ("normalize", "--size", 9, "--color", "gray", "--max-rejects", 0.1)),
    ],
)
def test_what_was_made_again_since_it_was_checked_is_left(what: str, words: tuple[object, ...], root: Path) -> None:
    """Files of these names are of other slices, or parts, now."""
    target = Target.find(open_place(str(root)), "default")
    assert target.dataset is not None
    name = FIRST if what == What.SLICE else next(iter(target.dataset.entries))["part"]
    succeeded(ringslice_here(words[0], root, "-r", "inline", "--overwrite", *words[1:]))
    before = contents(root)
    with pytest.raises(EnvironmentFailure, match=r"another run has written .* since it was checked"):
        Repair(target).attempt(Outcome([Finding(what, name, "")]))
    assert contents(root) == before


DEFECTS = {  # of shard; the kind of finding, and its line
    "": ("", ""),  # the negative control
    "lost": ("key missing", "is good, and in no slice"),
    "moved": ("manifest", "the slices are not balanced"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_slices_with_wrong_examples_are_found(defect: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example of class 0 is lost, or goes to the other training slice, which already has as many of it. All recorded
    values fit. `tests/etl/verify/test_join.py` has all ways to judge a key.
    """
    written: dict[str, int] = {}
    taken: list[SourcedExample] = []

    def write(folder: Place, staging: Place, planned: tuple[str, str, int], examples: Iterable[SourcedExample]) -> Any:
        (split, name, _), changed = planned, list(examples)
        if defect and name == FIRST:
            taken.append(next(each for each in changed if parse(each[0]).label == 0))
            changed.remove(taken[0])
        elif defect == "moved" and name == SECOND:
            changed += taken
        written[name] = len(changed)
        return write_slice(folder, staging, (split, name, len(changed)), changed)

    def build(stage: Any, identity: Any, normalized: Any, slices: Any, **rest: Any) -> dict[str, Any]:
        slices = [(split, name, written[name]) for split, name, _ in slices]
        return build_manifest(stage, identity, normalized, slices, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(shard_module, "write_slice", write)
        patch.setattr(shard_module, "build_manifest", build)
        shard_here(root, "--workers", "2", "--overwrite")
    found, error = verify(root)
    kind, line = DEFECTS[defect]
    assert line in error
    by_kind = json.loads((root / "verified/default/verification.json").read_text())["findings_by_kind"]
    assert kind in by_kind if kind else not by_kind
    assert {what for what, _ in found} <= {"key", "manifest"}
    assert not kind or "run shard again with --overwrite" in verify(root, "--repair")[1]


def read_entry_of_any_number(normalized: Place, origin: Origin, images: int, *rest: Any) -> dict[str, Any]:
    """As `read_entry`, but it does not notice if the part has not as many images as its pack."""
    del images
    return read_entry(normalized, origin, read_facts(rows_place(normalized, origin.part))["input"], *rest)


def test_a_reject_that_normalize_lost_or_changed_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = PartWriter.add
    for changed, line in (
        (None, "good + 0 rejects, by key: row 17: key is '2/0002.png', not '1/bad.png'"),
        ({"sha256": bytes(32)}, "1/bad.png: sha256 is b'\\x00"),
    ):

        def add_wrongly(part: PartWriter, image: dict[str, Any], *rest: Any, changed: Any = changed) -> None:
            if image["key"] != "1/bad.png":
                add(part, image, *rest)
            elif changed is not None:
                add(part, image | changed, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(PartWriter, "add", add_wrongly)
            patch.setattr(normalize_module, "read_entry", read_entry_of_any_number)
            words = ("--size", "8", "--color", "gray", "--format", "png", "--max-rejects", "0.1")
            normalize_here(root, *words, "--overwrite")
        shard_here(root, "--workers", "2", "--overwrite")
        found, error = verify(root)
        assert sorted(what for what, _ in found if what != "manifest") == ["input"]
        assert line in error
    assert "run normalize again with --overwrite" in verify(root, "--every-stage", "--repair")[1]


def test_parts_that_are_not_those_of_the_packs_are_found(root: Path) -> None:
    marker = root / "normalized/dataset.json"
    whole = marker.read_bytes()
    for change, line in (
        (lambda parts: parts.pop(), "packs of its parts is"),
        (lambda parts: parts[0].update(pack="pack-00001"), "packs of its parts.0 is 'pack-00001', not 'pack-00000'"),
        (lambda parts: parts[0].update(pack="pack-09999"), "packs of its parts.0 is 'pack-09999', not"),
    ):
        marker.write_bytes(whole)
        change_parts(root, change)
        shard_here(root, "--workers", "2", "--overwrite")
        found, error = verify(root)
        assert ("manifest", "dataset.json") in found
        assert line in error

"""The whole command: what it finds in damaged datasets, what it repairs to the same bytes, and what it cannot."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.stages.layout import slices_stage
from etl.storage.json_files import with_checksum
from etl.storage.place import open_place
from etl.verify.collect import bucket_place, task_place
from etl.verify.repair import holding
from mapreduce.verify import Verify
from tests.lib.commands import contents, copy_some, failed, flip_bit, succeeded
from tests.lib.in_process import ringslice_here

pytestmark = pytest.mark.integration

Damage = Callable[[Path], None]
Things = set[tuple[str, str]]

FIRST, SECOND = (f"train/train-0000{number}-of-00002" for number in range(2))
TEST, VALIDATION = (f"{split}/{split}-00000-of-00001" for split in ("test", "validation"))
SLICES = "slices/default"
PIPELINE = ("-r", "inline", "--size", 8, "--color", "gray", "--format", "png", "--workers", 2, "--pack-size", "3KB")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """60 digits, three of them the same, and one image that is none."""
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
    """A copy of it, to be damaged."""
    return shutil.copytree(whole, tmp_path / "root")


def verify(root: Path, *words: str) -> tuple[Things, str]:
    """What verify finds, in this process, and the error it ends with; empty where all is well."""
    job, error = Verify(["-r", "inline", *words, str(root)]), ""
    try:
        job.run_job()
    except DataError as raised:
        error = str(raised)
    marker = json.loads((Path(job.stage.folder.path) / "verification.json").read_text())
    found = {(each["what"], each["name"]) for each in marker["findings"]}
    assert bool(found) == bool(error)
    assert all(each["line"] in error for each in marker["findings"])
    return found, error


def flip(name: str, position: int) -> Damage:
    return lambda root: flip_bit(root / name, position)


def remove(name: str) -> Damage:
    return lambda root: (root / name).unlink()


def spoil(name: str) -> Damage:
    def damage(root: Path) -> None:
        (root / name).write_bytes(b"?")

    return damage


def cut_at_a_record(root: Path) -> None:
    path = root / SLICES / f"{FIRST}.tfrecord"
    path.write_bytes(path.read_bytes()[: last_offset(root)])


def double_a_record(root: Path) -> None:
    path = root / SLICES / f"{FIRST}.tfrecord"
    path.write_bytes(path.read_bytes() + path.read_bytes()[last_offset(root) :])


def last_offset(root: Path) -> int:
    return int((root / SLICES / f"{FIRST}.idx").read_text().splitlines()[-1].split()[0])


def exchange(ending: str) -> Damage:
    def damage(root: Path) -> None:
        one, other = (root / SLICES / f"{name}.{ending}" for name in (FIRST, SECOND))
        first = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(first)

    return damage


def remove_rejects(root: Path) -> None:
    for path in (root / "normalized/rejects").iterdir():
        path.unlink()


def several(*damages: Damage) -> Damage:
    def damage(root: Path) -> None:
        for each in damages:
            each(root)

    return damage


SLICE, INDEX = ("slice", FIRST), ("index", FIRST)
TABLE, BLOCKS = ("table", "examples.parquet"), ("table", "blocks.parquet")
PART, ROWS = "normalized/parts/pack-00001.tfrecord", "normalized/parts/pack-00000.parquet"

REPAIRABLE = {
    "bit of a length": (flip(f"{SLICES}/{FIRST}.tfrecord", 3), {SLICE}),
    "bit of an image": (flip(f"{SLICES}/{FIRST}.tfrecord", 150), {SLICE}),
    "cut at a record": (cut_at_a_record, {SLICE}),
    "record doubled": (double_a_record, {SLICE}),
    "slice missing": (remove(f"{SLICES}/{FIRST}.tfrecord"), {SLICE}),
    "slices exchanged": (exchange("tfrecord"), {SLICE, ("slice", SECOND)}),
    "slices and indexes exchanged": (
        several(exchange("tfrecord"), exchange("idx")),
        {SLICE, INDEX, ("slice", SECOND), ("index", SECOND)},
    ),
    "bit of an index": (flip(f"{SLICES}/{FIRST}.idx", 2), {INDEX}),
    "index missing": (remove(f"{SLICES}/{FIRST}.idx"), {INDEX}),
    "slice and index missing": (
        several(remove(f"{SLICES}/{FIRST}.tfrecord"), remove(f"{SLICES}/{FIRST}.idx")),
        {SLICE, INDEX},
    ),
    "bit of examples": (flip(f"{SLICES}/examples.parquet", 200), {TABLE}),
    "bit of blocks": (flip(f"{SLICES}/blocks.parquet", -30), {BLOCKS}),
    "tables missing": (
        several(*(remove(f"{SLICES}/{name}.parquet") for name in ("examples", "blocks", "class_counts", "departed"))),
        {TABLE, BLOCKS, ("table", "class_counts.parquet"), ("table", "departed.parquet")},
    ),
    "slice and examples": (
        several(remove(f"{SLICES}/{FIRST}.tfrecord"), flip(f"{SLICES}/examples.parquet", 200)),
        {SLICE, TABLE},
    ),
    "all slices and tables": (
        several(
            *(spoil(f"{SLICES}/{name}.tfrecord") for name in (FIRST, SECOND, TEST, VALIDATION)),
            *(spoil(f"{SLICES}/{name}.parquet") for name in ("examples", "blocks", "class_counts", "departed")),
        ),
        {
            *(("slice", name) for name in (FIRST, SECOND, TEST, VALIDATION)),
            *(("table", f"{name}.parquet") for name in ("examples", "blocks", "class_counts", "departed")),
        },
    ),
    "rows of a part": (flip(ROWS, 200), {("rows", "pack-00000")}),
    "rows missing": (remove(ROWS), {("rows", "pack-00000")}),
}
EVERY_STAGE = {
    "bit of a part": (flip(PART, 300), {("part", "pack-00001")}),
    "part missing": (remove(PART), {("part", "pack-00001")}),
    "part and its rows": (
        several(remove(PART), remove("normalized/parts/pack-00001.parquet")),
        {("part", "pack-00001"), ("rows", "pack-00001")},
    ),
    "slice and part": (several(remove(PART), cut_at_a_record), {SLICE, ("part", "pack-00001")}),
    "rejects": (remove_rejects, {("rejects", "?")}),
}


@pytest.mark.witness
def test_all_is_well(root: Path, source: Path) -> None:
    before = contents(root)
    found, error = verify(root, "--every-stage")
    assert (found, error) == (set(), "")
    assert {name: data for name, data in contents(root).items() if not name.startswith("verified/")} == before
    marker = json.loads((root / "verified/default/verification.json").read_text())
    assert marker["counts"]["examples"] == marker["counts"]["good"] == 62
    doubles = pq.read_table(root / "verified/default/duplicates.parquet").to_pylist()
    first = sorted(path.name for path in (source / "0").iterdir())[0]
    assert [row["key"] for row in doubles] == [f"0/{first}", "0/copy.png", "2/copy.png"]
    assert marker["duplicates"] == {
        "contents": 1,
        "examples": 3,
        "across_splits": int(len({row["split"] for row in doubles}) > 1),
        "across_classes": 1,
    }


@pytest.mark.witness
@pytest.mark.parametrize("name", [*REPAIRABLE, *EVERY_STAGE])
def test_damage_is_found_and_repaired(name: str, whole: Path, root: Path) -> None:
    damage, expected = (REPAIRABLE | EVERY_STAGE)[name]
    words = ["--every-stage"] if name in EVERY_STAGE else []
    damage(root)
    assert contents(root) != contents(whole)
    found, _ = verify(root, *words)
    assert {what for what, _ in found} == {what for what, _ in expected}
    assert expected <= found or name == "rejects"
    assert verify(root, *words, "--repair") == (set(), "")
    shutil.rmtree(root / "verified")
    assert contents(root) == contents(whole)


@pytest.mark.parametrize(
    ("damage", "left", "why"),
    [
        (flip("raw/packs/pack-00000.tar", 600), {("pack", "pack-00000")}, "it is the only copy of its images here"),
        (flip("raw/packs/pack-00000.parquet", 200), {("list", "pack-00000")}, "the only list of its pack's images"),
        (lambda root: (root / SLICES / "train/notes").write_text("x"), {("stray", "train/notes")}, "is not deleted"),
        (
            several(spoil(PART), flip("raw/packs/pack-00001.tar", 600), remove(f"{SLICES}/{FIRST}.tfrecord")),
            {("pack", "pack-00001"), ("part", "pack-00001"), SLICE},
            "pack-00001 is damaged too",
        ),
        (
            several(flip(PART, 300), flip("raw/packs/pack-00001.tar", 600), flip(f"{SLICES}/{FIRST}.idx", 2)),
            {("pack", "pack-00001"), ("part", "pack-00001")},
            "its pack is damaged too",
        ),
    ],
    ids=["pack", "list", "stray", "slice, part and pack", "part and pack"],
)
def test_what_cannot_be_repaired_is_listed_with_why(damage: Damage, left: Things, why: str, root: Path) -> None:
    damage(root)
    found, error = verify(root, "--every-stage", "--repair")
    assert found == left
    for what, name in left:
        assert f"{what} {name} is not repaired: " in error
    assert why in error


def test_a_part_that_a_slice_needs_is_repaired_though_nobody_asked_to_read_it(whole: Path, root: Path) -> None:
    several(spoil(PART), remove(f"{SLICES}/{FIRST}.tfrecord"))(root)
    assert verify(root, "--repair") == (set(), "")
    shutil.rmtree(root / "verified")
    assert contents(root) == contents(whole)


def edit(change: Callable[[dict], object], forged: bool = False) -> Damage:  # type: ignore[type-arg]
    """A manifest edited by hand; ``forged`` with a checksum that fits."""

    def damage(root: Path) -> None:
        path = root / SLICES / "manifest.json"
        manifest = json.loads(path.read_text())
        checksum = manifest.pop("checksum")
        change(manifest)
        path.write_text(json.dumps(with_checksum(manifest) if forged else manifest | {"checksum": checksum}))

    return damage


@pytest.mark.parametrize(
    ("damage", "status", "line"),
    [
        (edit(lambda manifest: manifest.update(format="ringslice.slices/4")), 2, "has format 'ringslice.slices/4'"),
        (edit(lambda manifest: manifest["config"].update(seed=7)), 1, "was edited or damaged"),
        (lambda root: (root / SLICES / "manifest.json").write_text('{"format": 1,}'), 1, "was edited or damaged"),
        (remove(f"{SLICES}/manifest.json"), 2, "holds no finished shard"),
    ],
    ids=["newer version", "by hand", "no JSON", "missing"],
)
def test_a_manifest_that_is_none_is_told_in_one_line(damage: Damage, status: int, line: str, root: Path) -> None:
    damage(root)
    told = ringslice_here("verify", root, "-r", "inline", "--repair")
    failed(told, status, line)
    assert len(told.stderr.splitlines()) == 1
    assert not (root / "verified").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda manifest: manifest.update(input="0" * 64), "made from other normalised images"),
        (
            lambda manifest: manifest["splits"]["train"].update(by_class=[1, 1, 1]),
            "examples by class of the split train",
        ),
        (lambda manifest: manifest["statistics"]["sums"].__setitem__(0, 1), "statistics of the manifest"),
        (lambda manifest: manifest["left_out"].update(duplicates=1), "good images were left out"),
        (lambda manifest: manifest["splits"]["test"].update(records=1), "contradicts itself"),
    ],
    ids=["another root", "by class", "statistics", "left out", "total"],
)
def test_a_forged_manifest_does_not_fit_the_data(change: Callable[[dict], object], line: str, root: Path) -> None:  # type: ignore[type-arg]
    edit(change, forged=True)(root)
    found, error = verify(root, "--repair")
    assert found == {("manifest", "manifest.json")}
    assert line in error


def test_slices_of_another_root_are_told_apart(source: Path, root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    succeeded(ringslice_here("pipeline", source, other, *PIPELINE, "--max-rejects", 0.1, "--seed", 1, "--fit", "exact"))
    shutil.copy(other / SLICES / f"{FIRST}.tfrecord", root / SLICES / f"{FIRST}.tfrecord")
    assert verify(root)[0] == {SLICE}, "one slice of the same name"
    shutil.rmtree(root / SLICES)
    shutil.copytree(other / SLICES, root / SLICES)
    assert verify(root)[0] == {("manifest", "manifest.json")}, "all of them"


def test_who_may_not_write_to_the_root_writes_elsewhere(root: Path, tmp_path: Path) -> None:
    flip(f"{SLICES}/{FIRST}.idx", 2)(root)
    before = contents(root)
    assert verify(root, "--to", str(tmp_path / "mine"))[0] == {INDEX}
    assert contents(root) == before
    assert (tmp_path / "mine/verification.json").exists()


def test_runners_find_the_same(root: Path) -> None:
    damage, _ = REPAIRABLE["slices exchanged"]
    damage(root)
    made = []
    for runner in ("inline", "local"):
        told = ringslice_here("verify", root, "-r", runner, "--json")
        assert told.returncode == 1
        assert json.loads(told.stdout)["findings"] == {"slice": 2}
        made.append(contents(root / "verified/default", "run.json"))
    assert made[0] == made[1]
    failed(ringslice_here("verify", root, "-r", "inline"), 1, "does not hold what is said of it, 2 findings:")
    assert json.loads(succeeded(ringslice_here("verify", root, "--repair", "--json")).stdout)["repaired"] == [
        f"slice {FIRST}",
        f"slice {SECOND}",
    ]


class Losing(Verify):
    """A verification one of whose results is lost."""

    def finish(self) -> None:
        task_place(self._results, 0).delete()
        super().finish()


class Forgetting(Verify):
    """A verification whose shuffle loses a line."""

    def mapper(self, _: None, task: dict[str, object]) -> Iterator[tuple[bytes, tuple[str, ...]]]:
        lines = super().mapper(_, task)
        if task["kind"] == "slices":
            next(lines)
        yield from lines


class Miscounting(Verify):
    """A verification that one bucket's result tells other things of."""

    def finish(self) -> None:
        bucket_place(self._results, 0).delete()
        super().finish()


@pytest.mark.parametrize(
    ("twin", "line"),
    [
        (Losing, "line-000000.json is missing though the job ended"),
        (Forgetting, "lines came out of the shuffle"),
        (Miscounting, "bucket-000000.json is missing though the job ended"),
    ],
)
def test_nothing_is_taken_for_granted_that_a_task_did_not_publish(twin: type[Verify], line: str, root: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=line):
        twin(["-r", "inline", str(root)]).run_job()
    assert not (root / "verified/default/verification.json").exists()
    assert verify(root) == (set(), "")


def test_two_repairs_do_not_meet(root: Path) -> None:
    slices = slices_stage(open_place(str(root)), "default")
    cut_at_a_record(root)
    before = contents(root)
    with (
        holding(slices, slices.fingerprint()),
        pytest.raises(EnvironmentFailure, match="is at work already"),
    ):
        verify(root, "--repair")
    shutil.rmtree(root / "verified")
    assert contents(root) == before
    assert verify(root, "--repair") == (set(), "")


def test_an_unknown_name_is_a_usage_error(root: Path) -> None:
    with pytest.raises(UsageError, match="holds no finished shard"):
        verify(root, "--name", "none")

"""`normalize --retry-rejects` gives what normalising all images again gives. Failures: tests/test_faults.py."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from etl.errors import DataError
from etl.formats import schemas
from etl.formats.example import serialize
from etl.formats.parquet_tables import read_facts
from etl.normalized import part_writer
from etl.normalized.parts import Origin, pack_of, read_entry
from etl.raw.packs import RemovedRows
from etl.report.pictures import sample_rejects
from etl.slices.prune import prune
from etl.stages.layout import normalized_stage
from etl.storage.place import open_place
from etl.verify.inspection import inspect_example, open_record_file
from mapreduce.normalize import Normalize
from tests.lib import generations
from tests.lib.commands import contents, flip_bit
from tests.lib.inline import ingest_here, normalize_here, refused, shard_here
from tests.lib.nights import some_png
from tests.mapreduce.test_verify import verify

WORDS = ("--size", "8", "--format", "png", "--max-rejects", "1", "--max-aspect", "100")
STRICT, LOOSE, LOOSEST = (("--max-pixels", str(number)) for number in (200, 500, 100_000))
RETRY = "--retry-rejects"
ONE_SPLIT = ("--workers", "1", "--split", "train=1")

Parts = dict[str, dict[str, Any]]


def write_source(folder: Path, night: int = 0) -> Path:
    """Small images of two classes; in "a" some of 20 and of 30 pixels a side and a long one; one of "b" is a line."""
    for label, sides in (("a", (9, 20, 9, 30, 9, 20, 9)), ("b", (9,) * 40)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number, side in enumerate(sides):
            (folder / label / f"{night}-{number}.png").write_bytes(some_png(100 * night + number, side, side))
    Image.new("RGB", (400, 1)).save(folder / "a" / f"{night}-7.png")
    Image.new("RGB", (1, 150)).save(folder / "b" / f"{night}-99.png")
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("images") / "source")


@pytest.fixture(scope="module")
def strict(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("strict") / "root"
    ingest_here(source, root, pack_size="5.5KB")
    normalize_here(root, *WORDS, *STRICT)
    return root


@pytest.fixture
def root(strict: Path, tmp_path: Path) -> Path:
    return shutil.copytree(strict, tmp_path / "root")


def marker_of(root: Path) -> dict[str, Any]:
    return json.loads((root / "normalized/dataset.json").read_text())


def parts_of(root: Path) -> Parts:
    return {pack_of(part): part for part in generations.parts_of(root)}


def reasons_of(root: Path) -> dict[str, str]:
    listed = [part["part"] for part in parts_of(root).values() if part["rejects"]["count"]]
    rows = [row for part in listed for row in pq.read_table(root / f"normalized/rejects/{part}.parquet").to_pylist()]
    return {row["key"]: row["reason"] for row in rows}


def good_rows(root: Path, part: dict[str, Any]) -> pa.Table:
    return pq.read_table(root / f"normalized/parts/{part['part']}.parquet")


def require_rebuilt(root: Path, fresh: Path, limits: tuple[str, str]) -> None:
    """All images became what normalising all of them with these limits makes: the same records, rows and rejects."""
    shutil.copytree(root / "raw", fresh / "raw")
    normalize_here(fresh, *WORDS, *limits)
    ours, theirs = parts_of(root), parts_of(fresh)
    assert list(ours) == list(theirs)
    for pack, part in ours.items():
        for name in ("sha256", "input", "records", "bytes", "examples", "pack_sha256", "list_sha256"):
            assert part[name] == theirs[pack][name]
        assert part["rejects"]["by_reason"] == theirs[pack]["rejects"]["by_reason"]
        assert part["part"] == pack or part["rejects"] == theirs[pack]["rejects"], "to the same bytes"
        assert good_rows(root, part).equals(good_rows(fresh, theirs[pack]))
    for name in ("config", "counts"):
        assert marker_of(root)[name] == marker_of(fresh)[name]


def test_looser_limits_give_what_normalising_all_with_them_gives(root: Path, tmp_path: Path) -> None:
    large = {f"a/0-{number}.png": "too-many-pixels" for number in (1, 3, 5, 7)}
    assert reasons_of(root) == large | {"b/0-99.png": "bad-aspect"}
    before = contents(root)
    normalize_here(root, *WORDS, *LOOSE, RETRY)
    require_rebuilt(root, tmp_path / "loose", LOOSE)
    left = {"a/0-7.png": "bad-aspect", "b/0-99.png": "bad-aspect"}
    assert reasons_of(root) == {"a/0-3.png": "too-many-pixels"} | left
    now = contents(root)
    changed = {name for name, data in before.items() if now.get(name) != data}
    assert changed == {"normalized/dataset.json", "normalized/run.json"}, "files never change"
    assert before["normalized/dataset.json"] in contents(root / "normalized/generations").values()
    assert [part["part"] for part in parts_of(root).values()] == [f"pack-0000{end}" for end in ("0.1", "1.1", "2", "3")]

    normalize_here(root, *WORDS, *LOOSEST, RETRY)
    require_rebuilt(root, tmp_path / "loosest", LOOSEST)
    assert reasons_of(root) == left
    assert [part["part"] for part in parts_of(root).values()] == [f"pack-0000{end}" for end in ("0.2", "1.1", "2", "3")]
    run = json.loads((root / "normalized/run.json").read_text())
    assert (run["rejects_tried"], run["now_good"]) == (3, 1)


@pytest.mark.integration
def test_no_part_is_made_if_no_reject_is_good_now(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    normalize_here(root, *WORDS, *LOOSE, RETRY)
    before = contents(root)
    capfd.readouterr()
    normalize_here(root, *WORDS, *LOOSE, RETRY)
    assert "no reject became good" in capfd.readouterr().err
    assert contents(root) == before
    normalize_here(root, *WORDS, *LOOSE, "--max-seconds", "20", RETRY)  # which changes none of these rejects
    new = contents(root).keys() - before.keys()
    assert all(name.startswith(("normalized/generations/", "normalized/tables/")) for name in new), new
    assert marker_of(root)["config"]["limits"]["seconds"] == 20
    shard_here(root, *ONE_SPLIT)
    for path in (root / "normalized/rejects").iterdir():  # they record their limits, with which they are repaired
        path.unlink()
    assert {what for what, _ in verify(root, "--every-stage")[0]} == {"rejects"}
    assert verify(root, "--every-stage", "--repair") == (set(), "")


def test_only_looser_limits_may_differ(root: Path) -> None:
    before = contents(root)
    for line, *words in (
        ("--size: [8, 8] there, [9, 9] asked; ", *STRICT, "--size", "9"),
        ("--max-pixels 100 is stricter than the 200 that", "--max-pixels", "100"),
        ("--retry-rejects and --overwrite contradict each other", *LOOSE, "--overwrite"),
    ):
        refused(Normalize, 2, line, root, *WORDS, *words, RETRY)
    assert contents(root) == before


def test_an_unfinished_stage_has_no_rejects_to_retry(root: Path, source: Path, tmp_path: Path) -> None:
    shutil.rmtree(root / "normalized")
    refused(Normalize, 2, "has no finished normalize (no dataset.json)", root, *WORDS, *LOOSE, RETRY)
    assert not (root / "normalized").exists()
    normalize_here(root, *WORDS, *STRICT)
    ingest_here(write_source(shutil.copytree(source, tmp_path / "source"), 1), root, pack_size="5.5KB")
    last = generations.packs_of(root)[-1]["name"]
    flip_bit(root / f"raw/packs/{last}.tar", 600)
    refused(Normalize, 1, f"{last}.tar is damaged", root, *WORDS, *STRICT)  # a renewal is begun and not finished
    refused(Normalize, 2, "first run normalize without --retry-rejects", root, *WORDS, *LOOSE, RETRY)


@pytest.mark.integration
def test_a_rebuilt_part_stays_in_later_nights(root: Path, source: Path, tmp_path: Path) -> None:
    """Images that are removed from the source are removed from it too, whatever its name."""
    normalize_here(root, *WORDS, *LOOSE, RETRY)
    before = parts_of(root)
    refused(Normalize, 2, "already has another normalize (limits ", root, *WORDS, *STRICT)
    night = write_source(shutil.copytree(source, tmp_path / "source"), 1)
    for name in ("a/0-1.png", "a/0-3.png", "b/0-0.png"):
        (night / name).unlink()
    prune(open_place(str(root)), keep=1)
    assert not (root / "normalized/parts/pack-00000.parquet").exists(), "no slices are made from it"
    ingest_here(night, root, pack_size="5.5KB", max_removed="1")
    normalize_here(root, *WORDS, *LOOSE)
    kept = {name: parts_of(root)[name]["part"] for name in before}
    assert kept == {name: part["part"] for name, part in before.items()}, "a renewal keeps what the retry made"
    normalize_here(root, *WORDS, *LOOSEST, RETRY)
    place, normalized = open_place(str(root)), normalized_stage(open_place(str(root))).read_generation()
    shown = sample_rejects(normalized, RemovedRows.read(place, normalized.marker), seed=0)
    by_reason = normalized.marker["counts"]["rejects_by_reason"]
    assert {reason: len(pictures) for reason, pictures in shown.items()} == by_reason
    shard_here(root, *ONE_SPLIT)
    assert verify(root, "--every-stage") == (set(), "")


@pytest.mark.integration
def test_new_slices_get_what_is_good_now_and_older_ones_stay_right(root: Path) -> None:
    halves = ("--workers", "1", "--split", "train=0.5,test=0.5")
    shard_here(root, "--name", "old", *halves)
    old = contents(root / "slices/old")
    normalize_here(root, *WORDS, *LOOSE, RETRY)
    shard_here(root, "--name", "new", *halves, "--splits-from", "old")
    rows = {name: pq.read_table(root / "slices" / name / "examples.parquet").to_pylist() for name in ("old", "new")}
    before, now = ({row["key"]: row["split"] for row in own} for own in rows.values())
    assert before.items() <= now.items()
    assert now.keys() - before.keys() == {"a/0-1.png", "a/0-5.png"}
    (part,) = {row["source"] for row in rows["new"] if row["key"] == "a/0-1.png"}
    file = open_record_file(str(root / "normalized/parts" / part))
    pack = inspect_example(file, file.find("a/0-1.png"))["origin"]["pack"]
    data = Path(pack["file"]).read_bytes()[pack["offset"] :][: pack["size"]]
    assert data == some_png(1, 20, 20), "inspect finds the pack of a part that was made again"
    flip_bit(root / "normalized/parts/pack-00000.1.tfrecord", 300)
    (root / "normalized/parts/pack-00001.tfrecord").unlink()
    (root / "slices/old/train/train-00000-of-00001.tfrecord").unlink()
    for name in ("new", "old"):
        assert verify(root, "--name", name, "--every-stage", "--repair") == (set(), ""), name
    assert contents(root / "slices/old") == old
    prune(open_place(str(root)), keep=1)
    named = {f"{part['part']}{end}" for part in parts_of(root).values() for end in (".tfrecord", ".parquet")}
    assert {path.name for path in (root / "normalized/parts").iterdir()} == named
    assert verify(root, "--name", "new", "--every-stage") == (set(), "")


def test_a_good_image_that_changed_is_refused_and_the_part_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with other versions of libraries."""
    files = sorted((root / "normalized").rglob("pack-00000*"))
    before = [path.read_bytes() for path in files]
    with monkeypatch.context() as patch:
        patch.setattr(part_writer, "serialize", lambda example: serialize(replace(example, width=7)))
        refused(Normalize, 1, "pack-00000.parquet: a/0-0.png is not what it was", root, *WORDS, *LOOSEST, RETRY)
    assert sorted((root / "normalized").rglob("pack-00000*")) == files
    assert [path.read_bytes() for path in files] == before
    normalize_here(root, *WORDS, *LOOSEST, RETRY)


def test_a_part_of_other_images_is_refused(digits_root: Path) -> None:
    normalized, removed = open_place(str(digits_root / "normalized")), RemovedRows(schemas.REMOVED.empty_table())
    (first, *_) = sorted((digits_root / "normalized/parts").glob("*.parquet"))
    facts = read_facts(open_place(str(first)))
    origin, images = Origin.of_part(facts), facts["input"]
    assert read_entry(normalized, origin, images, removed, 10)["removed"] == 0
    for other, number in ((replace(origin, pack_sha256="0" * 64), images), (origin, images + 1)):
        with pytest.raises(DataError, match="was made from other images; normalize again with --overwrite"):
            read_entry(normalized, other, number, removed, 10)

"""One value is edited, and every SHA-256 and checksum above it is made to fit: verify finds it, or nobody reads it."""

import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from etl.errors import RingsliceError
from etl.formats import parquet_tables
from etl.storage.place import open_place
from mapreduce.verify import Verify
from tests.lib.commands import copy_some
from tests.lib.edits import Edit, edit_at_random, edit_cell, edit_json, publish
from tests.lib.inline import ingest_here, normalize_here, shard_here

pytestmark = pytest.mark.integration

# What verify cannot tell, or nobody relies on: file and field, with the reason.
UNTOLD = {
    ("*/run.json", "*"): "where, when and by what a stage was made: for people, and no bytes follow from it",
    ("raw/versions.parquet", "*"): "advice: a file whose time of change is another one is read and compared again",
    ("raw/*.json", "input"): "of what the source tells: the next ingest compares it with the source",
    ("raw/*.json", "config.[ilsc]*"): "how the source is read: ingest refuses another, and nobody else asks",
    ("raw/*.json", "config.pack_bytes"): "as above",
    ("raw/*.json", "counts.skipped"): "files of the source that are no images: they are not packed, and told to people",
    ("raw/*.json", "pixels.*"): "of an IDX source: normalize refuses another configuration than it was made with",
    ("raw/*.json", "next_pack"): "it may be larger than need be: no pack gets a name again (one too small is found)",
    ("*.json", "parent"): "the generation before, for people: prune may have removed it",
    (
        "normalized/*.json",
        "config.[bflopqs]*",
    ): "how images were decoded: normalize refuses another; only decoding tells",
    ("normalized/*.json", "config.limits.*"): "as above",
    ("normalized/*.json", "parts.N.limits.*"): "limits that the part was made with: only decoding tells",
    ("normalized/parts/*", "source_*"): "of the source image's header, for reports: only decoding tells",
    ("normalized/rejects/*", "detail"): "what the decoder said, for people: only decoding tells",
    ("slices/*/manifest.json", "config.workers"): "without groups nobody reads it; the slices are a multiple of it",
    ("slices/*/manifest.json", "config.drop_duplicates"): "true where no content is there twice holds as well",
    ("slices/*/manifest.json", "config.removed_keys"): "with kept splits: the list may repeat keys removed before",
    ("slices/*/departed.parquet", "removed"): "as above: who was removed tonight only that list tells",
}
NIGHTS = ("night-2", "night-1")


@pytest.fixture(scope="module")
def nights(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of two nights: images that left and came, rejects, removed keys, kept splits, groups of workers."""
    folder = tmp_path_factory.mktemp("nights")
    source, root = copy_some(digits, folder / "source", "012", slice(10)), folder / "root"
    (source / "1" / "bad.png").write_bytes(b"no image")
    for night in NIGHTS[::-1]:
        ingest_here(source, root, pack_size="3KB", max_removed="1")
        normalize_here(root, "--size", "4", "--color", "gray", "--format", "png", "--max-rejects", "0.5")
        words = ["--name", night, "--splits-from", "newest", "--workers", "2", "--slices", "2", "--groups", "2"]
        listed = folder / "listed"
        listed.write_text(f"2/{sorted((source / '2').iterdir())[0].name}\n")
        shard_here(root, *words, *(["--remove", listed] if night == "night-2" else []))
        copy_some(digits, source, "012", slice(10, 12))
        for name in ("0", "1"):
            sorted((source / name).glob("*.png"))[3].unlink()
        shutil.copy(sorted((source / "0").iterdir())[0], source / "1" / "copy.png")
    assert [found(root, name, "--every-stage") for name in NIGHTS] == ["", ""]
    return root


@pytest.fixture(scope="module")
def grouped(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of images of patients, floats, duplicates left out, sizes of their own."""
    folder = tmp_path_factory.mktemp("grouped")
    source, root = copy_some(digits, folder / "source", "01", slice(12)), folder / "root"
    paths = sorted(source.rglob("*.png"))
    shutil.copy(paths[0], source / "1" / "copy.png")
    with Image.open(paths[1]) as image:
        image.resize((6, 4)).save(paths[1])
    keys = [str(path.relative_to(source)) for path in sorted(source.rglob("*.png"))]
    rows = "".join(f"{key},p{number % 9}\n" for number, key in enumerate(keys))
    (folder / "columns.csv").write_text(f"key,patient\n{rows}")
    ingest_here(source, root, pack_size="4KB", columns=str(folder / "columns.csv"))
    normalize_here(root, "--size", "4x4", "--fit", "longest", "--format", "float32", "--subtract", "1,2,3")
    words = ["--group-by", "patient", "--drop-duplicates", "--split", "train=0.6,test=0.4", "--partition", "uniform"]
    shard_here(root, "--name", "night-1", *words, "--workers", "2")
    assert found(root, "night-1", "--every-stage") == ""
    return root


def is_untold(edit: Edit) -> bool:
    return any(fnmatch(edit.file, file) and fnmatch(edit.field, field) for file, field in UNTOLD)


def found(root: Path, name: str, *words: str) -> str:
    """The error that verify ends with, empty where it finds nothing; what is no error of ours is raised."""
    try:
        Verify(["-r", "inline", "--name", name, *words, str(root)]).run_job()
    except RingsliceError as error:
        assert "Traceback" not in str(error)
        assert "does not hold what is said of it" in str(error) or "\n" not in str(error)
        return str(error)
    return ""


def is_answered(whole: Path, root: Path, edit: Edit) -> bool:
    """Whether verify finds an edit, or replaces what was edited by what it finds, or `UNTOLD` explains it."""
    names = [name for name in NIGHTS if (root / "slices" / name / "manifest.json").exists()]
    names.sort(key=lambda name: name not in edit.file)
    if edit.file.startswith("verified/") and not is_untold(edit):
        return (
            not found(root, names[0], "--every-stage")
            and (root / edit.file).read_bytes() == (whole / edit.file).read_bytes()
        )
    if is_untold(edit):
        return edit.file.endswith("run.json") or found(root, names[0]) is not None
    return any(found(root, name) for name in names) or any(found(root, name, "--every-stage") for name in names)


def try_edits(whole: Path, folder: Path, seed: int, numbers: Iterable[int]) -> list[str]:
    """Edits of a copy of ``whole`` that verify neither finds nor may pass over."""
    missed = []
    for number in numbers:
        root = shutil.copytree(whole, folder / "root")
        edit = edit_at_random(root, Random(f"{seed} {number}"))
        if not is_answered(whole, root, edit):
            missed.append(f"{seed} {number}: {edit}")
        shutil.rmtree(root)
    return missed


EXAMPLES, MANIFEST, RAW, NORMALIZED = (
    *("slices/night-1/examples.parquet", "slices/night-1/manifest.json"),
    *("raw/dataset.json", "normalized/dataset.json"),
)
REJECTS, DEPARTED = "normalized/rejects/pack-00000.parquet", "slices/night-2/departed.parquet"
CELLS: dict[str, tuple[str, str, Any, str]] = {
    "split": (EXAMPLES, "split", "test", "is not as the table of examples tells"),
    "slice": (EXAMPLES, "slice", "train/other", "is not as the table of examples tells"),
    "source": (EXAMPLES, "source", "pack-00077", "is said to come from pack-00077"),
    "sha256": (EXAMPLES, "sha256", bytes(32), "has another sha256 in examples.parquet"),
    "reason": (REJECTS, "reason", "truncated", "is not what its rows and its rejects say"),
    "size of a reject": (REJECTS, "size", 7, "have not the sizes that the list of the pack tells"),
    "offset of a reject": (REJECTS, "offset", 7, "is not at offset 7"),
    "label of a reject": (REJECTS, "label", 2, "bad.png has another label"),
    "departed": (DEPARTED, "split", "validation", "it was in"),
}
FIELDS: dict[str, tuple[str, str, Any, str]] = {
    "class": (MANIFEST, "classes.0", "zero", "the classes of the manifest are not those"),
    "mean": (MANIFEST, "statistics.mean.0", 1.5, "the statistics of the manifest are not those"),
    "std": (MANIFEST, "statistics.std.0", 1.5, "the statistics of the manifest are not those"),
    "format": (MANIFEST, "image.format", "RAW", "the normalised ones are"),
    "height": (MANIFEST, "image.height", 28, "the normalised ones are"),
    "channels": (MANIFEST, "image.channels", 3, "the normalised ones are"),
    "seed": (MANIFEST, "config.seed", 7, "is not where the seed 7 of the manifest orders it"),
    "group by": (MANIFEST, "config.group_by", "patient", "and has no group"),
    "shares": (MANIFEST, "config.split", {"train": "1/2", "test": "1/2"}, "does not give these slices"),
    "groups": (MANIFEST, "config.groups", 1, "slices that are not those of its configuration"),
    "workers": (MANIFEST, "config.workers", 4, "are not the slices for"),
    "records of a group": (MANIFEST, "splits.train.groups.0.records", 1, "have not the examples of their slices"),
    "class counts": (MANIFEST, "tables.class_counts.rows", 99, "the manifest tells of 99"),
    "departed rows": ("slices/night-2/manifest.json", "tables.departed.rows", 0, "the manifest tells of 0"),
    "reasons": (NORMALIZED, "counts.rejects_by_reason", {"truncated": 1}, "the rejects_by_reason of normalized"),
    "reasons of a part": (NORMALIZED, "parts.0.rejects.by_reason", {"truncated": 1}, "is not what its table of rows"),
    "bytes": (RAW, "counts.bytes", 1, "raw tells of other bytes"),
    "shape": (RAW, "packs.0.removed", None, "packs[0].removed is None, not integer"),
    "no share": (MANIFEST, "config.split.train", "1/0", "its configuration is none that shard takes"),
}


@pytest.mark.parametrize("name", [*CELLS, *FIELDS])
def test_what_is_compared(name: str, nights: Path, tmp_path: Path) -> None:
    root, (file, field, value, line) = shutil.copytree(nights, tmp_path / "root"), (CELLS | FIELDS)[name]
    if name in CELLS:
        edit_cell(root, file, field, 0, value)
    else:
        edit_json(root, file, field, value)
    assert line in found(root, "night-1" if "night-1" in file else "night-2")


def test_slices_dealt_by_another_partition_or_with_duplicates_are_found(grouped: Path, tmp_path: Path) -> None:
    for field, value, line in (
        ("config.drop_duplicates", False, "is good, and in no slice"),
        ("config.group_by", None, "by the configuration it belongs to"),
        ("config.seed", 1, "by the configuration it belongs to"),
        ("left_out.duplicates", 0, "good images were left out"),
    ):
        root = shutil.copytree(grouped, tmp_path / field)
        edit_json(root, MANIFEST, field, value)
        assert line in found(root, "night-1"), field


def test_a_partition_that_counts_alone_decide_is_found(nights: Path, tmp_path: Path) -> None:
    """Stratified slices fit what uniform promises; which slice each image belongs to tells them apart."""
    root = shutil.copytree(nights, tmp_path / "root")
    edit_json(root, MANIFEST, "config.partition", "uniform")
    assert "by the configuration it belongs to" in found(root, "night-1")


def test_slices_that_moved_what_was_known_are_found(nights: Path, tmp_path: Path) -> None:
    """Of slices that kept no splits, the manifest is made to tell that they did."""
    root = shutil.copytree(nights, tmp_path / "root")
    shard_here(root, "--name", "moved", "--seed", "3", "--workers", "2", "--slices", "2")
    manifest = json.loads((root / MANIFEST).read_text())
    assert found(root, "moved") == ""
    fingerprint = hashlib.sha256((root / MANIFEST).read_bytes()).hexdigest()
    edit_json(root, "slices/moved/manifest.json", "config.splits_from", fingerprint)
    assert manifest["config"]["splits_from"] is None
    by_kind = kinds(root, "moved")
    assert {"key moved", "key content moved", "key forgotten"} <= by_kind
    (root / EXAMPLES).write_bytes(b"?")  # of slices that are damaged nothing is taken for granted
    assert kinds(root, "moved") == {"earlier"}


@pytest.mark.parametrize(("column", "value"), [("offset", 513), ("size", -1), ("offset", 1 << 50), ("offset", -1)])
def test_a_list_of_images_in_place_is_held_against_their_file(
    column: str, value: int, digits: Path, tmp_path: Path
) -> None:
    folder, root = copy_some(digits, tmp_path / "source", "01", slice(4)), tmp_path / "root"
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives/all.tar", "w") as tar:
        for path in sorted(folder.rglob("*.png")):
            tar.add(path, str(path.relative_to(folder)))
    ingest_here(tmp_path / "archives", root, in_place=True)
    normalize_here(root, "--size", "4", "--format", "png")
    shard_here(root, "--name", "night-1", "--split", "train=0.5,test=0.5", "--workers", "2")
    assert found(root, "night-1", "--every-stage") == ""
    edit_cell(root, "raw/packs/pack-00000.parquet", column, 1, value)
    assert "all.tar" in found(root, "night-1", "--every-stage")


def test_a_row_of_an_image_that_was_left_out_is_held_against_its_record(grouped: Path, tmp_path: Path) -> None:
    root = shutil.copytree(grouped, tmp_path / "root")
    for path in sorted((root / "normalized/parts").glob("*.parquet")):
        keys = pq.read_table(path)["key"].to_pylist()
        if "1/copy.png" in keys:
            edit_cell(root, f"normalized/parts/{path.name}", "crc32c", keys.index("1/copy.png"), 7)
    assert "1/copy.png is not as its rows tell" in found(root, "night-1", "--every-stage")


def kinds(root: Path, name: str) -> set[str]:
    assert found(root, name) != ""
    return {*json.loads((root / "verified" / name / "verification.json").read_text())["findings_by_kind"]}


def test_an_edit_is_found_or_changes_nothing(nights: Path, grouped: Path, tmp_path: Path) -> None:
    assert try_edits(nights, tmp_path, 0, range(30)) == []
    assert try_edits(grouped, tmp_path, 0, range(10)) == []


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["nights", "grouped"])
def test_many_edits_are_found_or_change_nothing(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert try_edits(request.getfixturevalue(name), tmp_path, 0, range(100)) == []


@pytest.mark.parametrize("facts", [1.5, 5, {"examples": {"": 10**400}}, {"rejects": 1}, {"examples": []}])
@pytest.mark.parametrize("file", ["raw/packs/pack-00000.parquet", "normalized/parts/pack-00000.parquet"])
def test_facts_of_a_table_that_are_none(file: str, facts: Any, nights: Path, tmp_path: Path) -> None:
    root = shutil.copytree(nights, tmp_path / "root")
    table = parquet_tables.read_table(open_place(str(root / file)))
    publish(root, root / file, parquet_tables.table_bytes(table, facts))
    assert found(root, "night-2") != ""


@pytest.mark.parametrize(("table", "column"), [("departed", "removed"), ("examples", "split"), ("contents", "sha256")])
def test_earlier_tables_that_lack_a_column(table: str, column: str, nights: Path, tmp_path: Path) -> None:
    root = shutil.copytree(nights, tmp_path / "root")
    path = root / "slices/night-1" / f"{table}.parquet"
    rows = parquet_tables.read_table(open_place(str(path))).drop_columns([column])
    publish(root, path, parquet_tables.table_bytes(rows))
    assert found(root, "night-2") != ""


@pytest.mark.parametrize(
    ("field", "value"), [("tables.blocks", False), ("tables.groups.file", []), ("lineage.ancestors", True)]
)
def test_an_earlier_manifest_of_another_shape(field: str, value: Any, nights: Path, tmp_path: Path) -> None:
    root = shutil.copytree(nights, tmp_path / "root")
    edit_json(root, "slices/night-1/manifest.json", field, value)
    assert "slices/night-1/manifest.json was edited or damaged" in found(root, "night-2")

"""Edits of recorded values that no hash reveals: verify finds each of them, or nobody relies on the value."""

import hashlib
import json
import shutil
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from etl.errors import RingsliceError
from etl.formats import parquet_tables
from mapreduce.verify import Verify
from tests.etl.erase.test_erase import write_tar
from tests.lib.commands import copy_some
from tests.lib.edits import REMOVED, Edit, edit_value, fields, publish, set_value
from tests.lib.inline import erase_here, ingest_here, normalize_here, run_here, shard_here

pytestmark = pytest.mark.integration

# What verify cannot find, or nobody relies on: file and field, with the reason.
NOT_FOUND = {
    ("raw/versions.parquet", "*"): "advice: a file whose time of change is another one is read and compared again",
    ("raw/*.json", "input"): "of the source: the next ingest compares it with the source",
    ("raw/*.json", "config.[cikls]*"): "how the source is read: ingest refuses another, and nobody else asks",
    ("raw/*.json", "config.pack_bytes"): "as above",
    ("raw/*.json", "counts.skipped"): "files of the source that are not images: they are not packed, only reported",
    ("raw/*.json", "pixels.*"): "of an IDX source: normalize refuses another configuration than it was made with",
    ("raw/*.json", "next_pack"): "it may be larger than need be: no pack gets a name again (one too small is found)",
    ("*.json", "parent"): "the generation before, for people: prune may have removed it",
    ("normalized/*.json", "config.[bflopqs]*"): "how images were decoded: normalize refuses another",
    ("normalized/*.json", "config.limits.*"): "as above",
    ("normalized/tables/*", "limits.*"): "limits that the part was made with: only decoding could compare them",
    ("normalized/parts/*", "source_*"): "of the source image's header, for reports: only decoding could compare it",
    ("normalized/rejects/*", "detail"): "the decoder's message, for people: only decoding could compare it",
    ("slices/*/manifest.json", "config.workers"): "without groups nobody reads it; the slices are a multiple of it",
    ("slices/*/manifest.json", "config.drop_duplicates"): "true is right too if every content is there once",
    ("slices/*/manifest.json", "config.removed_keys"): "with kept splits: the list may repeat keys removed before",
    ("slices/*/departed.parquet", "removed"): "as above: only that list says which key was removed tonight",
}
LIVE = {"records": 0, "bytes": 0, "rejects": {"count": 0, "by_reason": {}}, "examples": {}}
NIGHTS = ("night-2", "night-1")
EXAMPLES, MANIFEST = "slices/night-1/examples.parquet", "slices/night-1/manifest.json"
# Values that a change at random does not give: fixture, file, field, value.
SPECIAL: list[tuple[str, str, str, Any]] = [
    ("nights", MANIFEST, "config.workers", 4),
    ("nights", MANIFEST, "config.groups", 1),
    ("nights", MANIFEST, "config.split.train", "1/0"),
    ("nights", MANIFEST, "config.split", {"train": "1/2", "test": "1/2"}),
    ("nights", MANIFEST, "config.partition", "uniform"),
    ("nights", MANIFEST, "config.group_by", "patient"),
    ("nights", EXAMPLES, "source.0", "pack-00077"),
    ("nights", EXAMPLES, "sha256.0", None),
    ("nights", "raw/dataset.json", "next_pack", 0),
    ("nights", "raw/dataset.json", "config.pack_bytes", None),
    ("nights", "normalized/rejects/pack-00000.parquet", "reason.0", "truncated"),
    ("nights", "normalized/rejects/pack-00000.parquet", "offset.0", None),
    ("nights", "normalized/dataset.json", "counts.rejects_by_reason", {"truncated": 1}),
    ("nights", "normalized/parts/pack-00000.parquet", "sums.1", [None]),
    ("nights", "normalized/parts/pack-00000.parquet", "source_height.0", -3),
    ("nights", "raw/dataset.json", "kind", "idx"),
    ("nights", "raw/dataset.json", "pixels", {"height": 8, "width": 8, "channels": 1}),
    ("grouped", "normalized/tables/*.parquet", "rejects.0.count", 1),
    ("grouped", "normalized/tables/*.parquet", "live.0", {**LIVE, "records": 1}),
    ("grouped", "raw/tables/*.parquet", "name.0", "../pack-00000"),
    ("grouped", MANIFEST, "config.drop_duplicates", False),
    ("grouped", MANIFEST, "config.group_by", None),
    ("grouped", MANIFEST, "config.seed", 1),
    ("grouped", MANIFEST, "left_out.duplicates", 0),
    # of slices whose splits those of night-2 keep, which are verified
    ("earlier", MANIFEST, "tables.blocks", False),
    ("earlier", MANIFEST, "tables.groups.file", []),
    ("earlier", MANIFEST, "lineage.ancestors", True),
    ("earlier", "slices/night-1/departed.parquet", "removed", REMOVED),
    ("earlier", EXAMPLES, "split", REMOVED),
    ("earlier", "slices/night-1/contents.parquet", "sha256", REMOVED),
    # a file of the source that is a pack in place: another place of an image
    ("in_place", "raw/packs/pack-00000.parquet", "offset.1", 513),
    ("in_place", "raw/packs/pack-00000.parquet", "offset.1", 1 << 50),
    ("in_place", "raw/packs/pack-00000.parquet", "size.1", -1),
    # other facts of a table
    *(
        ("nights", file, "facts", facts)
        for file in ("raw/packs/pack-00000.parquet", "normalized/parts/pack-00000.parquet")
        for facts in (5, {"examples": {"": 10**400}}, {"rejects": 1})
    ),
]


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


@pytest.fixture(scope="module")
def in_place(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose pack is a tar file of the source."""
    folder = tmp_path_factory.mktemp("in-place")
    source, root = copy_some(digits, folder / "source", "01", slice(4)), folder / "root"
    write_tar(source, folder / "archives/all.tar")
    ingest_here(folder / "archives", root, in_place=True)
    normalize_here(root, "--size", "4", "--format", "png")
    shard_here(root, "--name", "night-1", "--split", "train=0.5,test=0.5", "--workers", "2")
    assert found(root, "night-1", "--every-stage") == ""
    return root


def found(root: Path, name: str, *words: str) -> str:
    """The error that verify ends with, empty if it finds nothing; an error that is not ringslice's own is raised."""
    try:
        run_here(Verify, root, "--name", name, *words)
    except RingsliceError as error:
        assert "Traceback" not in str(error)
        assert "verification failed" in str(error) or "\n" not in str(error)
        return str(error)
    return ""


def names_of(root: Path, file: str) -> list[str]:
    """The slices of a root: those that ``file`` is of, then the newest first."""
    names = sorted((path.parent.name for path in root.glob("slices/*/manifest.json")), reverse=True)
    return sorted(names, key=lambda name: name not in file)


def is_answered(whole: Path, root: Path, edit: Edit) -> bool:
    """True if verify finds an edit or writes the edited file again, or if `NOT_FOUND` explains it."""
    names = names_of(root, edit.file)
    if any(fnmatch(edit.file, file) and fnmatch(edit.field, field) for file, field in NOT_FOUND):
        found(root, names[0])  # raises nothing that is not ringslice's own
        return True
    if edit.file.startswith("verified/"):
        is_sound = not found(root, names[0], "--every-stage")
        return is_sound and (root / edit.file).read_bytes() == (whole / edit.file).read_bytes()
    return any(found(root, name, "--every-stage") for name in names)


@pytest.mark.parametrize("share", [0, *(pytest.param(each, marks=pytest.mark.chaos) for each in (1, 2, 3))])
def test_an_edit_of_any_field_is_found(share: int, nights: Path, grouped: Path, tmp_path: Path) -> None:
    left: list[Edit] = []
    for whole, done in ((nights, set[tuple[str, str]]()), (grouped, {*fields(nights)})):
        for (kind, field), places in [*fields(whole).items()][share::4]:
            if (kind, field) in done or kind.endswith("run.json"):  # for people: no bytes follow from it
                continue
            random = Random(f"{kind} {field}")
            root = shutil.copytree(whole, tmp_path / "root")
            edit = edit_value(root, *random.choice(places), random)
            left += [edit] if edit is not None and not is_answered(whole, root, edit) else []
            shutil.rmtree(root)
    assert left == []


@pytest.mark.parametrize(("whole", "file", "field", "value"), SPECIAL)
def test_special_values_are_found(  # noqa: PLR0917 - a row of the table, and fixtures
    whole: str, file: str, field: str, value: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fixture = "nights" if whole == "earlier" else whole
    root = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "root")
    (path,) = root.glob(file)
    file = str(path.relative_to(root))
    if value is REMOVED:
        publish(root, root / file, parquet_tables.table_bytes(pq.read_table(root / file).drop_columns([field])))
    elif field == "facts":
        publish(root, root / file, parquet_tables.table_bytes(pq.read_table(root / file), value))
    else:
        set_value(root, file, field, value)
    name = "night-2" if whole == "earlier" else names_of(root, file)[0]
    assert found(root, name, "--every-stage") != ""


@pytest.mark.parametrize("stage", ["raw", "normalized"])
def test_a_damaged_table_of_packs_or_parts_is_found(stage: str, grouped: Path, tmp_path: Path) -> None:
    for number, change in enumerate((lambda data: data[:-9] + b"?" + data[-8:], lambda data: data + b" ", None)):
        root = shutil.copytree(grouped, tmp_path / str(number))
        (path,) = (root / stage / "tables").iterdir()
        path.write_bytes(change(path.read_bytes())) if change else path.unlink()
        for words in ((), ("--every-stage",)):
            error = found(root, "night-1", *words)
            assert f"{path} {'was edited or damaged' if change else 'is missing'}" in error
            assert "copied from another root" not in error
        assert "there is no other copy" in found(root, "night-1", "--repair")


@pytest.mark.parametrize("is_erased", [False, True], ids=["", "without normalized images"])
def test_slices_that_did_not_keep_their_splits_are_found(is_erased: bool, nights: Path, tmp_path: Path) -> None:
    """The manifest of slices that kept no splits is edited to say that they did. With an image of no slices the
    generations of normalized are erased that all slices were made from.
    """
    root, listed = shutil.copytree(nights, tmp_path / "root"), tmp_path / "keys"
    shard_here(root, "--name", "moved", "--seed", "3", "--workers", "2", "--slices", "2")
    if is_erased:
        listed.write_text("1/bad.png\n")
        erase_here(root, listed)
    assert [found(root, name) for name in (*NIGHTS, "moved")] == [""] * 3, "the negative control"
    fingerprint = hashlib.sha256((root / MANIFEST).read_bytes()).hexdigest()
    set_value(root, "slices/moved/manifest.json", "config.splits_from", fingerprint)
    assert kinds(root, "moved") == {"key different", "manifest"}
    if not is_erased:
        (root / EXAMPLES).write_bytes(b"?")  # damaged earlier slices prove nothing
        assert kinds(root, "moved") == {"earlier", "manifest"}  # which has no lineage
        return
    for table in ("departed", "contents"):
        copied = shutil.copytree(root, tmp_path / table)
        file = f"slices/night-2/{table}.parquet"
        before = pq.read_table(copied / file)["split"][0].as_py()
        set_value(copied, file, "split.0", "test" if before != "test" else "train")
        assert f"{table}.parquet is not what the slices whose splits were kept give" in found(copied, "night-2")


def kinds(root: Path, name: str) -> set[str]:
    assert found(root, name) != ""
    return {*json.loads((root / "verified" / name / "verification.json").read_text())["findings_by_kind"]}


def test_the_row_of_an_image_that_was_left_out_is_compared_with_its_record(grouped: Path, tmp_path: Path) -> None:
    root = shutil.copytree(grouped, tmp_path / "root")
    for path in sorted((root / "normalized/parts").glob("*.parquet")):
        keys = pq.read_table(path)["key"].to_pylist()
        if "1/copy.png" in keys:
            set_value(root, f"normalized/parts/{path.name}", f"crc32c.{keys.index('1/copy.png')}", 7)
    assert "1/copy.png is not as in its rows" in found(root, "night-1", "--every-stage")

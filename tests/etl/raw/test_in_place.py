"""`ingest --in-place` of tar and Parquet files: the same parts, no copy, and changes of the files are found."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etl.errors import DataError, UsageError
from etl.normalized.parts import live_rows, read_rows
from etl.raw.packs import RemovedRows
from etl.slices.prune import prune
from etl.storage.place import Place, open_place
from etl.verify.inspection import trace
from mapreduce.verify import Verify
from tests.lib.generations import packs_of, parts_of
from tests.lib.inline import ingest_here, normalize_here, run_here, shard_here
from tests.lib.nights import some_png
from tests.lib.sources.archives import Entry, packed, tar_of
from tests.lib.sources.parquet_images import image_column, image_table, write_file, write_parquet

Write = Callable[..., Place]

# An image's bytes stand there once.
PLAINLY = {"compression": "none", "use_dictionary": False, "write_statistics": False}


def write_tar(source: Place, shard: int, first: int, count: int = 5) -> Place:
    """A shard of WebDataset; what is no image lies between the images."""
    entries = []
    for number in range(first, first + count):
        entries += [Entry(f"{number:04d}.png", some_png(number)), Entry(f"{number:04d}.cls", b"%d" % (number % 3))]
        entries += [Entry(f"{number:04d}.npy", bytes(1500))]
    return write_file(source / f"part-{shard}.tar", tar_of(entries))


def write_rows(source: Place, shard: int, first: int, count: int = 5) -> Place:
    """A Parquet file of two row groups, with another column of bytes in the struct."""
    table = image_table(count, first, names=None)
    table = table.set_column(0, "image", image_column([some_png(first + row) for row in range(count)]))
    return write_parquet(source / f"part-{shard}.parquet", table, row_group_size=3, **PLAINLY)


each_kind = pytest.mark.parametrize("write", [write_tar, write_rows], ids=["tar", "parquet"])


@pytest.fixture
def source(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "source"))


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "root"))


def examples(root: Place) -> dict[str, tuple[bytes, int]]:
    """SHA-256 of the source and checksum of the normalised record, by key."""
    marker = (root / "normalized" / "dataset.json").read_json()
    removed = RemovedRows.read(root, marker)
    columns = ["key", "sha256", "crc32c"]
    tables = [live_rows(root / "normalized", part, removed, columns) for part in parts_of(root)]
    return {row["key"]: (row["sha256"], row["crc32c"]) for table in tables for row in table.to_pylist()}


def make(source: Place, root: Place, in_place: bool = True, max_removed: str = "1") -> None:
    ingest_here(source, root, in_place=in_place, max_removed=max_removed)
    normalize_here(root, "--size", "8")


@each_kind
def test_parts_are_those_of_a_copy(root: Place, source: Place, tmp_path: Path, write: Write) -> None:
    here, place, copied = root / "here", root / "source", open_place(str(tmp_path / "copied"))
    for shard in range(2):
        for each in (place, source):
            write(each, shard, 10 * shard)
    make(place, here)
    make(source, copied, in_place=False)
    assert len(examples(here)) == 10
    assert examples(here) == examples(copied)
    packs = packs_of(here)
    assert [pack["file"] for pack in packs] == [(place / info.base_name).uri for info in place.children()]
    assert {info.extension for info in (here / "raw" / "packs").children()} == {"parquet"}
    last = read_rows(here / "normalized", "pack-00001", ["key", "sha256"]).to_pylist()[-1]
    where: dict[str, Any] = {"column": "image.bytes", "row": 4} if write is write_rows else {"offset": 4 * 4096 + 512}
    found = trace(here, "pack-00001", last["key"], last["sha256"])["pack"]
    assert found == {"file": packs[1]["file"], "size": len(some_png(14)), **where}


@each_kind
def test_one_file_is_several_packs(local: Place, source: Place, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.raw.packs.MAX_IMAGES", 3)
    file = write(source, 0, 0, 8)
    make(source, local)
    packs = packs_of(local)
    assert [(pack["images"], pack["file"]) for pack in packs] == [(3, file.uri), (3, file.uri), (2, file.uri)]
    assert len({pack["sha256"] for pack in packs}) == 1
    assert len(examples(local)) == 8
    os.utime(file.path, ns=(1, 1))
    make(source, local)
    assert packs_of(local) == packs
    shard_here(local, "--slices", "1", "--workers", "1")
    hashed, sha256 = list[Place](), Place.sha256

    def note(place: Place) -> str:
        hashed.append(place)
        return sha256(place)

    monkeypatch.setattr(Place, "sha256", note)
    run_here(Verify, local, "--every-stage")
    assert hashed.count(file) == 1


@each_kind
def test_new_and_changed_files_become_new_packs(local: Place, source: Place, write: Write) -> None:
    files = [write(source, shard, 10 * shard) for shard in range(3)]
    make(source, local)
    before = packs_of(local)
    make(source, local)
    assert packs_of(local) == before
    os.utime(files[0].path, ns=(1, 1))  # touched
    write(source, 1, 70)  # another one under the same name, with images of other keys in a tar file
    write(source, 3, 30)
    files[2].delete()
    make(source, local)
    after = packs_of(local)
    assert [pack["name"] for pack in after] == ["pack-00000", "pack-00003", "pack-00004"]
    assert after[0] == before[0]
    other = open_place(f"{local}-other")
    make(source, other)
    assert examples(local) == examples(other)
    shard_here(local)
    run_here(Verify, local, "--every-stage")


def test_the_same_images_at_other_offsets_of_the_file(local: Place, source: Place) -> None:
    """They are known; one is new. The time of change is the same, the length another."""
    entries = [Entry(f"c/{n}.png", some_png(n)) for n in range(5)]
    for each in (entries[:4], [Entry("note.md", bytes(10_240)), *entries[::-1]]):  # what tar pads files to
        os.utime(write_file(source / "some.tar", tar_of(each)).path, ns=(1, 1))
        make(source, local, max_removed="0")
    assert [pack["name"] for pack in packs_of(local)] == ["pack-00001"]
    assert len(examples(local)) == 5


def test_a_file_that_is_replaced_before_it_is_hashed_is_noticed(
    local: Place, source: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, sha256 = write_tar(source, 0, 0), Place.sha256

    def replace_then_hash(place: Place) -> str:
        if place == file:
            write_tar(source, 0, 1)
        return sha256(place)

    monkeypatch.setattr(Place, "sha256", replace_then_hash)
    with pytest.raises(DataError, match=r"part-0.tar changed while it was read"):
        ingest_here(source, local, in_place=True)


@pytest.mark.parametrize("is_touched", [False, True])
@each_kind
def test_a_source_may_be_moved(tmp_path: Path, local: Place, source: Place, write: Write, is_touched: bool) -> None:
    elsewhere = open_place(str(tmp_path / "elsewhere"))
    file = write(source, 0, 0)
    make(source, local)
    time_ns = 1 if is_touched else file.info().mtime_ns
    os.utime(write(elsewhere, 0, 0).path, ns=(time_ns, time_ns))
    file.delete()
    make(elsewhere, local, max_removed="0")
    assert [pack["file"] for pack in packs_of(local)] == [(elsewhere / file.name).uri]


@pytest.mark.integration
@pytest.mark.parametrize("how", ["flipped", "missing", "cut"])
@each_kind
def test_a_file_that_changed_since_is_named(local: Place, source: Place, write: Write, how: str) -> None:
    file = write(source, 0, 0, 40)
    ingest_here(source, local, in_place=True)
    normalize_here(local, "--size", "8")
    shard_here(local)
    data = bytearray(file.read_bytes())
    start = data.index(some_png(20)) + 50
    data[start] ^= 1
    file.delete()
    if how != "missing":
        write_file(file, bytes(data) if how == "flipped" else bytes(data[:start]))
    with pytest.raises(DataError, match="part-0"):
        run_here(Verify, local, "--every-stage")
    with pytest.raises(DataError, match=r"part-0\.(tar|parquet) .*(put the original back|fetch or write it again)"):
        normalize_here(local, "--size", "9", "--overwrite")


def test_pruning_leaves_the_files_of_the_source(local: Place, source: Place) -> None:
    file = write_tar(source, 0, 0)
    make(source, local)
    shard_here(local, "--slices", "1", "--workers", "1")
    write_tar(source, 0, 50)
    make(source, local)
    shard_here(local, "--slices", "1", "--workers", "1", "--name", "second")
    prune(local, keep=1)
    assert file.exists()
    assert [pack["name"] for pack in packs_of(local)] == ["pack-00001"]
    run_here(Verify, local, "--every-stage", "--name", "second")


def test_other_sources_are_refused(tmp_path: Path, source: Place) -> None:
    write_file(source / "some.tar.gz", packed(tar_of([Entry("c/1.png", some_png(1))]), "gzip"))
    write_file(open_place(str(tmp_path / "folder" / "c" / "1.png")), some_png(1))
    for place, why in ((source, r"some\.tar\.gz is compressed"), (tmp_path / "folder", "files of their own")):
        with pytest.raises(UsageError, match=rf"--in-place is for plain tar files and Parquet files.*{why}"):
            ingest_here(place, tmp_path / "root", in_place=True)
    assert not (tmp_path / "root").exists()
    write_tar(open_place(str(tmp_path / "plain")), 0, 0)
    ingest_here(tmp_path / "plain", tmp_path / "root")
    with pytest.raises(UsageError, match="in_place False there, True asked"):
        ingest_here(tmp_path / "plain", tmp_path / "root", in_place=True)

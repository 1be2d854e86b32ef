"""Archives as sources: what is read of them, and what samples and folders say of images."""

import hashlib
import json
import os
import random
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from etl.errors import DataError, UsageError
from etl.raw.ingest import ingest
from etl.sources import ArchiveSource, Reading, Source, open_source
from etl.storage.local import LocalFilesystem
from etl.storage.place import Place, open_place
from tests.lib.commands import contents
from tests.lib.faults import READ, Fault, FaultError, FaultyFilesystem
from tests.lib.inline import ingest_here, ingest_values
from tests.lib.sources.archives import (
    PROGRAM_FORMATS,
    SUFFIXES,
    Entry,
    contents_of,
    open_archive,
    packed,
    some_images,
    tar_by_program,
    tar_of,
)

by_codec = pytest.mark.parametrize("codec", list(SUFFIXES))

NO_TEXT = b"\xff\xfe"


@pytest.mark.integration
@by_codec
@pytest.mark.parametrize("kind", PROGRAM_FORMATS)
def test_what_the_program_packed_comes_out(kind: str, codec: str, tmp_path: Path) -> None:
    expected = {f"some/{entry.name}": entry.data for entry in some_images(20)}
    for key, data in expected.items():
        path = tmp_path / "files" / key.removeprefix("some/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    archive = packed(tar_by_program(tmp_path / "files", f"--format={kind}"), codec)
    source = open_archive(tmp_path / "source", archive, f"some{SUFFIXES[codec]}")
    assert contents_of(source) == expected
    assert source.classes == ["cats", "dogs"]
    assert [source.classes[image.label] for image in source.images] == [key.split("/")[1] for key in sorted(expected)]
    assert (source.kind, source.skipped, source.is_sequential) == ("archive", 0, bool(codec))


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tgz", "x.tar.zst", "x.TZST"])
@by_codec
def test_how_it_is_packed_is_told_by_its_bytes(codec: str, name: str, tmp_path: Path) -> None:
    source = open_archive(tmp_path / "source", packed(tar_of(some_images()), codec), name)
    assert contents_of(source) == {f"x/{entry.name}": entry.data for entry in some_images()}
    assert source.is_sequential is bool(codec)


@pytest.mark.parametrize("join", ["two gzip members", "a skippable frame of zstd", "two frames of zstd"])
def test_what_packers_may_write_comes_out(join: str, tmp_path: Path) -> None:
    archive = tar_of(some_images())
    data = {
        "two gzip members": packed(archive[:700], "gzip") + packed(archive[700:], "gzip"),
        "a skippable frame of zstd": b"\x53\x2a\x4d\x18\3\0\0\0abc" + packed(archive, "zstd"),
        "two frames of zstd": packed(archive[:700], "zstd") + packed(archive[700:], "zstd"),
    }[join]
    assert len(contents_of(open_archive(tmp_path / "source", data))) == 6


@pytest.mark.parametrize("kind", ["gnu", "pax"])
@pytest.mark.parametrize("name", ["a/" + "long" * 60 + ".jpg", "/".join("abcdefgh" for _ in range(40)) + "/é漢.jpg"])
def test_names_longer_than_a_header_holds(name: str, kind: str, tmp_path: Path) -> None:
    entries = [Entry("b/first.jpg", b"1"), Entry(name, b"2"), Entry("b/last.jpg", b"3")]
    source = open_archive(tmp_path / "source", tar_of(entries, kind))
    assert contents_of(source) == {f"some/{entry.name}": entry.data for entry in entries}


def test_other_headers_of_pax_change_nothing(tmp_path: Path) -> None:
    """A global comment, as `git archive` writes it, times with fractions, and attributes."""
    headers = {"mtime": "1.5", "SCHILY.xattr.user.x": "a=b\nc", "comment": "x" * 3000}
    path = tmp_path / "some.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "of all"}) as archive:
        for entry in some_images():
            info = tarfile.TarInfo(entry.name)
            info.size, info.pax_headers = 0, headers
            archive.addfile(info)
    assert len(contents_of(open_source(open_place(str(path))))) == 6


def test_folders_are_passed_over_and_what_is_hidden_is_counted(tmp_path: Path) -> None:
    entries = [
        Entry("./", fields={"type": tarfile.DIRTYPE}),
        Entry("./cats/", fields={"type": tarfile.DIRTYPE}),
        Entry("old/", fields={"type": tarfile.AREGTYPE}),  # as v7 has folders
        Entry("cats/._1.jpg", b"of a Mac"),
        Entry("./cats/1.jpg", b"1"),
        Entry("__MACOSX/cats/1.jpg", b"of a Mac"),
        Entry(".git/2.jpg", b"hidden"),
        Entry("cats/readme.md", b"no image"),
        Entry("cats/2.JPEG", b"2"),
    ]
    source = open_archive(tmp_path / "source", tar_of(entries, "ustar"))
    assert contents_of(source) == {"some/cats/1.jpg": b"1", "some/cats/2.JPEG": b"2"}
    assert source.skipped == 4


def shard(numbers: Sequence[int], **fields: Any) -> list[Entry]:
    """A shard as writers of WebDataset make it: a label, a text and a JSON for each image."""
    entries = []
    for number in numbers:
        stem = f"{number:05d}"
        entries += [
            Entry(f"{stem}.cls", f"{number % 3}".encode()),
            Entry(f"{stem}.jpg", f"image {number}".encode()),
            Entry(f"{stem}.json", json.dumps({"width": number, "url": None} | fields).encode()),
            Entry(f"{stem}.txt", f"a caption of {number}\n".encode()),
        ]
    return entries


@by_codec
def test_shards_of_webdataset(codec: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(3):
        data = packed(tar_of(shard(range(10 * number, 10 * number + 10))), codec)
        (tmp_path / "source" / f"train-{number:05d}{SUFFIXES[codec]}").write_bytes(data)
    (tmp_path / "source" / "index.json").write_text("{}")
    source = open_source(open_place(str(tmp_path / "source")))
    assert [image.key for image in source.images] == [f"train-{n // 10:05d}/{n:05d}.jpg" for n in range(30)]
    assert list(contents_of(source).values()) == [f"image {number}".encode() for number in range(30)]
    assert (source.classes, source.skipped) == (["0", "1", "2"], 0)
    assert [image.label for image in source.images] == [number % 3 for number in range(30)]
    assert {image.split for image in source.images} == {"train"}
    assert source.images[7].columns == (("txt", "a caption of 7"), ("width", "7"))
    assert [image.position[0] for image in source.images] == [number // 10 for number in range(30)]


def listed(folder: Path, entries: list[Entry], **reading: Any) -> list[tuple[str, str, str | None]]:
    """(name, class, split) of each image."""
    source = open_archive(folder / "source", tar_of(entries), reading=Reading(**reading))
    return [(each.key.removeprefix("some/"), source.classes[each.label], each.split) for each in source.images]


def test_where_a_label_stands(tmp_path: Path) -> None:
    both = [Entry("a/1.json", b'{"label": "json", "kind": 7}'), Entry("a/1.cls", b" cls\n"), Entry("a/1.png")]
    assert listed(tmp_path, both) == [("a/1.png", "cls", None)]
    assert listed(tmp_path, both, label_column="label") == [("a/1.png", "json", None)]
    assert listed(tmp_path, both, label_column="kind") == [("a/1.png", "7", None)]
    assert listed(tmp_path, both, classes=("cls", "other")) == [("a/1.png", "cls", None)]
    by_number = [Entry("1.cls", b"\xef\xbb\xbf1"), Entry("1.png")]
    assert listed(tmp_path, by_number, classes=("cat", "dog")) == [("1.png", "dog", None)]
    without = [Entry("a/1.json", b'{"label": null}'), Entry("a/1.png"), Entry("b/deep/2.png")]
    assert listed(tmp_path, without) == [("a/1.png", "a", None), ("b/deep/2.png", "b", None)]
    many = [Entry("a/1.2.png"), Entry("a/1.3.png"), Entry("a/1.png"), Entry("b/1.png")]
    assert [label for _, label, _ in listed(tmp_path, many)] == ["a", "a", "a", "b"]


def test_where_a_split_stands(tmp_path: Path) -> None:
    stated = [Entry("a/1.json", b'{"split": "Val", "fold": "test"}'), Entry("a/1.png"), Entry("a/2.png")]
    assert [split for *_, split in listed(tmp_path, stated)] == ["validation", None]
    assert listed(tmp_path, stated[:2], split_column="fold") == [("a/1.png", "a", "test")]
    folders = [Entry("train/a/1.png"), Entry("val/a/1.json", b'{"split": "test"}'), Entry("val/a/1.png")]
    found = listed(tmp_path, folders, split_folders=True)
    assert found == [("train/a/1.png", "a", "train"), ("val/a/1.png", "a", "test")]
    samples = [Entry("val/1.cls", b"c"), Entry("val/1.png"), Entry("2.cls", b"d"), Entry("2.png")]
    assert listed(tmp_path, samples, split_folders=True) == [("val/1.png", "c", "validation"), ("2.png", "d", None)]
    (tmp_path / "source" / "some.tar").unlink()
    source = open_archive(tmp_path / "source", tar_of(some_images()), "my-test-0.tar")
    assert {image.split for image in source.images} == {"test"}


def test_what_else_is_told_becomes_columns(tmp_path: Path) -> None:
    told = {"text": "é\n", "n": 3, "x": 0.5, "yes": True, "none": None, "list": [1], "nan": float("nan"), "label": "c"}
    entries = [
        Entry("1.json", json.dumps(told).encode()),
        Entry("1.png"),
        Entry("1.txt", b"x" * 10_001),
        Entry("2.cls", b"c"),
        Entry("2.png"),
        Entry("2.txt", NO_TEXT),
        Entry("3.cls", b"c"),
        Entry("3.png"),
        Entry("3.depth.npy", b"1234"),
        Entry("4.txt", b"of no image"),
    ]
    source = open_archive(tmp_path / "source", tar_of(entries))
    assert source.images[0].columns == (("n", "3"), ("text", "é\n"), ("x", "0.5"), ("yes", "true"))
    assert [image.columns for image in source.images[1:]] == [None, None]
    assert source.skipped == 4


SAMPLE = [Entry("1.jpg"), Entry("1.json", b'{"label": "a"}')]

BAD: dict[str, tuple[list[Entry], dict[str, Any], str]] = {
    "no label": (
        [Entry("1.jpg")],
        {},
        "'1.jpg' of .*some.tar has no label: name it as in CLASS/IMAGE.jpg",
    ),
    "no label in a split": ([Entry("val/1.jpg")], {"split_folders": True}, "has no label: name it as in SPLIT/CLASS/"),
    "no split": ([Entry("dev/a/1.jpg")], {"split_folders": True}, "some.tar/dev names no split"),
    "splits as classes": ([Entry("val/a/1.jpg"), Entry("test/1.jpg")], {}, "look like splits, not classes"),
    "a folder around": (
        [Entry("all/a/1.jpg"), Entry("all/b/1.jpg")],
        {},
        "below 'all', which would be",
    ),
    "images apart": ([Entry("1.jpg"), Entry("2.jpg"), Entry("1.cls", b"a")], {}, "'1.jpg' .* has no label"),
    "a label apart": ([Entry("a/1.jpg"), Entry("a/2.jpg"), Entry("a/1.cls", b"a")], {}, "'a/1.cls' .* no image"),
    "a JSON apart": ([Entry("a/1.jpg"), Entry("meta.json", b"{}")], {}, "'meta.json' .* has no image beside it"),
    "one label for two": (
        [Entry("1.cls", b"a"), Entry("1.jpg"), Entry("1.seg.png")],
        {},
        "'1.seg.png' .* share",
    ),
    "two labels": (
        [Entry("1.cls", b"a"), Entry("1.jpg"), Entry("1.CLS", b"b")],
        {},
        "'1.cls' and '1.CLS' .* one",
    ),
    "a long label": ([Entry("1.cls", b"a" * 1001), Entry("1.jpg")], {}, "1001 bytes; a .cls has at most 1000"),
    "a long JSON": ([Entry("1.json", b" " * 1_000_001), Entry("1.jpg")], {}, "a .json has at most 1000000"),
    "an empty label": ([Entry("1.cls", b" \n"), Entry("1.jpg")], {}, "'1.cls' .* a label that is empty"),
    "two lines": ([Entry("1.cls", b"a\nb"), Entry("1.jpg")], {}, r"holds control characters: 'a\\nb'"),
    "no text": ([Entry("1.cls", NO_TEXT), Entry("1.jpg")], {}, "'1.cls' .* is not UTF-8"),
    "no JSON": ([Entry("1.json", b"{'a': 1}"), Entry("1.jpg")], {}, "'1.json' .* is no JSON"),
    "JSON that is no text": ([Entry("1.json", NO_TEXT), Entry("1.jpg")], {}, "'1.json' .* is not UTF-8"),
    "deep JSON": ([Entry("1.json", b"[" * 100_000), Entry("1.jpg")], {}, "'1.json' .* is no JSON"),
    "a list": ([Entry("1.json", b"[]"), Entry("1.jpg")], {}, "holds no JSON object"),
    "a large number": ([Entry("1.json", b'{"a": 1' + b"0" * 5000 + b"}"), Entry("1.jpg")], {}, "is no JSON"),
    "half a character": ([Entry("1.json", b'{"label": 1, "a": "\\ud800"}'), Entry("1.jpg")], {}, "surrogate"),
    "half a label": ([Entry("1.json", b'{"label": "\\ud800"}'), Entry("1.jpg")], {}, "a label that is not UTF-8"),
    "a label of parts": ([Entry("1.json", b'{"label": ["a"]}'), Entry("1.jpg")], {}, "no text and no whole number"),
    "a label that is true": ([Entry("1.json", b'{"label": true}'), Entry("1.jpg")], {}, "no text and no whole number"),
    "no such label": (SAMPLE, {"label_column": "kind"}, "no .json with the field 'kind' .* correct --label-column"),
    "no such split": (SAMPLE, {"split_column": "fold"}, "no .json with the field 'fold' .* correct --split-column"),
    "another split": (
        [*SAMPLE[:1], Entry("1.json", b'{"split": "dev", "label": 1}')],
        {},
        "the split 'dev'",
    ),
    "an unknown class": (SAMPLE, {"classes": ("b",)}, "the label 'a', which is not one of the 1 --classes"),
    "no image": ([Entry("a/readme.md")], {}, "no images in .*some.tar; expected members such as"),
    "nothing": ([], {}, "no images in .*some.tar"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.usefixtures("no_collection")
def test_what_says_nothing_clear_is_refused(bad: str, tmp_path: Path) -> None:
    entries, reading, told = BAD[bad]
    with pytest.raises(UsageError, match=told) as raised:
        open_archive(tmp_path / "source", tar_of(entries), reading=Reading(**reading))
    assert str(raised.value).isprintable()


def test_the_same_key_in_two_archives_is_refused(tmp_path: Path) -> None:
    open_archive(tmp_path / "source", tar_of(some_images()))
    with pytest.raises(UsageError, match=r"the key some/cats/000.jpg comes twice: in .*some.tar and in .*some.tgz"):
        open_archive(tmp_path / "source", tar_of(some_images()), "some.tgz")


def test_an_archive_named_by_no_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'a\\nb' cannot be a key, for it holds control characters; rename it"):
        open_archive(tmp_path / "source", tar_of(some_images()), "a\nb.tar")


def sources_of(folder: Path, codec: str) -> Source:
    """Three archives of 40 images each."""
    folder.mkdir()
    for number in range(3):
        entries = [Entry(f"c{n % 3}/{n}.jpg", random.Random(n).randbytes(n * 37)) for n in range(40)]
        (folder / f"{number}.tar").write_bytes(packed(tar_of(entries), codec))
    return open_source(open_place(str(folder)))


@by_codec
def test_images_are_read_in_any_order_and_by_several_threads(codec: str, tmp_path: Path) -> None:
    source = sources_of(tmp_path / "source", codec)
    expected = contents_of(source)
    assert len(expected) == 120
    chance = random.Random(1)
    choices = [chance.sample(source.images, 30) for _ in range(8)] + [source.images] * 4
    with ThreadPoolExecutor(4) as pool:
        for images, found in zip(choices, pool.map(lambda images: list(source.read_all(images)), choices), strict=True):
            assert found == [expected[image.key] for image in images]


@by_codec
@pytest.mark.parametrize("change", ["touched", "longer", "gone"])
def test_a_file_that_changed_since_it_was_listed_is_told(change: str, codec: str, tmp_path: Path) -> None:
    source = sources_of(tmp_path / "source", codec)
    path = tmp_path / "source" / "1.tar"
    known = path.stat()
    if change == "gone":
        path.unlink()
        with pytest.raises(FileNotFoundError):
            contents_of(source)
        return
    if change == "longer":
        path.write_bytes(path.read_bytes() + bytes(512))
    os.utime(path, ns=(1, known.st_mtime_ns + (change == "touched")))
    with pytest.raises(DataError, match=r"1.tar changed while it was read; run again when nobody writes there"):
        contents_of(source)


def rows_of(root: Path) -> dict[str, dict[str, Any]]:
    """The rows of all image lists, by key; each SHA-256 is checked to be that of the bytes in the pack."""
    rows = {}
    for path in sorted((root / "raw/packs").glob("*.parquet")):
        pack = path.with_suffix(".tar").read_bytes()
        for row in pq.read_table(path).to_pylist():
            data = pack[row["offset"] : row["offset"] + row["size"]]
            assert hashlib.sha256(data).digest() == row["sha256"]
            rows[row["key"]] = row
    return rows


@by_codec
def test_ingest_takes_every_byte_and_writes_below_the_root_alone(codec: str, tmp_path: Path) -> None:
    expected = contents_of(sources_of(tmp_path / "source", codec))
    before = contents(tmp_path)
    ingest_here(tmp_path / "source", tmp_path / "root", pack_size="9000")
    rows = rows_of(tmp_path / "root")
    assert {key: row["sha256"] for key, row in rows.items()} == {
        key: hashlib.sha256(data).digest() for key, data in expected.items()
    }
    assert {name: data for name, data in contents(tmp_path).items() if not name.startswith("root/")} == before
    marker = json.loads((tmp_path / "root/raw/dataset.json").read_bytes())
    assert (marker["kind"], marker["counts"]["images"], len(marker["packs"]) > 3) == ("archive", 120, True)


def test_columns_and_splits_reach_the_lists(tmp_path: Path) -> None:
    (tmp_path / "train-0.tar").write_bytes(tar_of(shard(range(4))))
    ingest_here(tmp_path / "train-0.tar", tmp_path / "root")
    row = rows_of(tmp_path / "root")["train-0/00003.jpg"]
    assert (row["split"], row["columns"]) == ("train", [("txt", "a caption of 3"), ("width", "3")])


@by_codec
@pytest.mark.parametrize("at_once", ["1", "4"])
def test_a_run_goes_on_where_reading_failed(at_once: str, codec: str, tmp_path: Path) -> None:
    sources_of(tmp_path / "source", codec)
    values = ingest_values(pack_size="9000", packs_at_once=at_once)

    def faulty(fault: Fault) -> Place:
        return Place(FaultyFilesystem(LocalFilesystem(), fault), str(tmp_path / "source"))

    listing, whole = Fault(), Fault()
    open_source(faulty(listing))
    ingest(faulty(whole), open_place(str(tmp_path / "whole")), values)
    fault = Fault((len(listing.calls) + len(whole.calls)) // 2)
    assert whole.calls[len(listing.calls) :].count(READ) > 1, "reading makes no calls that could fail"
    with pytest.raises(FaultError):
        ingest(faulty(fault), open_place(str(tmp_path / "root")), values)
    kept = contents(tmp_path / "root/raw/packs")
    assert kept or at_once != "1", "it failed before anything was there"
    assert not (tmp_path / "root/raw/dataset.json").exists()
    times = {name: (tmp_path / "root/raw/packs" / name).stat().st_mtime_ns for name in kept}
    run_again = ingest(open_place(str(tmp_path / "source")), open_place(str(tmp_path / "root")), values)
    assert run_again.to_json()["images"] == 120
    found = contents(tmp_path / "root", "run.json")
    assert found == contents(tmp_path / "whole", "run.json")
    lists = [name for name in kept if name.endswith(".parquet")]  # a pack without its list is written again
    assert all((tmp_path / "root/raw/packs" / name).stat().st_mtime_ns == times[name] for name in lists)


@by_codec
def test_one_more_shard_keeps_the_packs(codec: str, tmp_path: Path) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.tar").write_bytes(packed(tar_of(shard(range(20))), codec))
    ingest_here(source, root, pack_size="100")
    before = contents(root / "raw/packs")
    (source / "2.tar").write_bytes(packed(tar_of(shard(range(20))), codec))
    os.utime(source / "0.tar", (1, 1))  # touched: its images are compared, and are the same
    ingest_here(source, root, pack_size="100")
    after = contents(root / "raw/packs")
    assert before.items() <= after.items()
    assert len(rows_of(root)) == 60
    new = {name for name in after.keys() - before.keys() if name.endswith(".parquet")}
    assert {row["key"][:2] for name in new for row in pq.read_table(root / "raw/packs" / name).to_pylist()} == {"2/"}


def test_a_packed_archive_is_unpacked_once_to_be_compared(tmp_path: Path) -> None:
    """However many packs its images are in."""
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / "0.tar.gz"
    path.write_bytes(packed(tar_of(shard(range(60))), "gzip"))
    ingest_here(tmp_path / "source", tmp_path / "root", pack_size="20")
    assert len(list((tmp_path / "root/raw/packs").glob("*.tar"))) > 20
    os.utime(path, (1, 1))
    counted = Fault()
    place = Place(FaultyFilesystem(LocalFilesystem(), counted), str(tmp_path / "source"))
    told = ingest(place, open_place(str(tmp_path / "root")), ingest_values(pack_size="20")).to_json()
    assert told["already_done"]
    assert counted.calls.count(READ) < 20


def test_few_files_stay_open_however_many_archives_are_read(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(30):
        (tmp_path / "source" / f"{number}.tgz").write_bytes(packed(tar_of(shard(range(2))), "gzip"))
    source = open_source(open_place(str(tmp_path / "source")))
    before = len(os.listdir("/proc/self/fd"))
    for image in source.images:
        assert len(list(source.read_all([image]))) == 1
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_tables_beside_archives_describe_them(tmp_path: Path) -> None:
    """As img2dataset leaves them."""
    (tmp_path / "source").mkdir()
    for number in range(2):
        (tmp_path / "source" / f"{number:05d}.tar").write_bytes(tar_of(shard(range(3))))
        (tmp_path / "source" / f"{number:05d}.parquet").write_bytes(b"PAR1")
        (tmp_path / "source" / f"{number:05d}_stats.json").write_text("{}")
    assert len(open_source(open_place(str(tmp_path / "source"))).images) == 6
    (tmp_path / "source" / "another.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match="no images in"):
        open_source(open_place(str(tmp_path / "source")))


@by_codec
def test_archives_on_any_root(codec: str, root: Place) -> None:
    folder = (root / "source").make_folder()
    for number in range(2):
        place = folder / f"train-{number}{SUFFIXES[codec]}"
        with place.filesystem.open_new(place.path) as stream:
            stream.write(packed(tar_of(shard(range(100))), codec))
    source = open_source(folder)
    assert isinstance(source, ArchiveSource)
    assert list(contents_of(source).values()) == [f"image {number}".encode() for number in range(100)] * 2
    chosen = source.images[::-7]
    assert list(source.read_all(chosen)) == [f"image {int(image.key[8:13])}".encode() for image in chosen]
    ingest(folder, root / "root", ingest_values(pack_size="900"))
    place = folder / "train-2.tar"
    with place.filesystem.open_new(place.path) as stream:
        stream.write(tar_of(shard(range(100)))[:-12_000])
    with pytest.raises(DataError, match=r"train-2.tar is cut off: of the \d+ bytes from byte \d+"):
        open_source(folder)

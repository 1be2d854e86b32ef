"""Archives as sources: their images, and the classes, splits and columns that samples and folders give them."""

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from etl.errors import UsageError
from etl.sources.base import SourceOptions
from etl.sources.detect import open_source
from etl.sources.fields import split_of
from etl.storage.place import open_place
from tests.lib.sources.archives import (
    SUFFIXES,
    Entry,
    contents_of,
    open_archive,
    packed,
    refused,
    some_images,
    tar_by_program,
    tar_of,
)

by_codec = pytest.mark.parametrize("codec", list(SUFFIXES))


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "codec"), [("v7", ""), ("ustar", "gzip"), ("gnu", "zstd"), ("pax", "")])
def test_images_packed_by_gnu_tar(kind: str, codec: str, tmp_path: Path) -> None:
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


def test_the_codec_is_known_by_the_bytes(tmp_path: Path) -> None:
    """Also of several members of gzip, several frames of zstd, or one to be skipped."""
    archive = tar_of(some_images())
    for number, (name, data) in enumerate(
        (
            ("x.TGZ", archive),
            ("x.tar", packed(archive[:700], "gzip") + packed(archive[700:], "gzip")),
            ("x.tar.gz", packed(archive[:700], "zstd") + packed(archive[700:], "zstd")),
            ("x.tar", b"\x53\x2a\x4d\x18\3\0\0\0abc" + packed(archive, "zstd")),
        )
    ):
        source = open_archive(tmp_path / str(number), data, name)
        assert contents_of(source) == {f"x/{entry.name}": entry.data for entry in some_images()}
        assert source.is_sequential is (number > 0)


@pytest.mark.integration
def test_headers_of_an_incremental_archive_with_a_label(tmp_path: Path) -> None:
    """GNU's old format has times where others have a prefix of the name; folders and the label are members of its."""
    (tmp_path / "files/cats").mkdir(parents=True)
    (tmp_path / "files/cats/1.png").write_bytes(b"1")
    words = ("--format=gnu", f"--listed-incremental={tmp_path}/snapshot", "--label=night")
    source = open_archive(tmp_path / "source", tar_by_program(tmp_path / "files", *words))
    assert contents_of(source) == {"some/cats/1.png": b"1"}


@pytest.mark.parametrize("kind", ["gnu", "pax"])
def test_names_longer_than_a_header(kind: str, tmp_path: Path) -> None:
    name = "/".join(["long" * 60, *"abcdefgh" * 5, "é漢.jpg"])
    entries = [Entry("b/first.jpg", b"1"), Entry(name, b"2"), Entry("b/last.jpg", b"3")]
    source = open_archive(tmp_path / "source", tar_of(entries, kind))
    assert contents_of(source) == {f"some/{entry.name}": entry.data for entry in entries}
    too_long = tar_of([entries[0], Entry("b/" + "long/" * 817 + "1.jpg", b"1")], kind)
    with pytest.raises(UsageError, match=r"a member of .*some.*because it has 4097 bytes, more than 4096; rename it"):
        open_archive(tmp_path / "long", too_long)


def test_other_headers_of_pax_change_nothing(tmp_path: Path) -> None:
    """A global comment, as `git archive` writes it, times with fractions, and attributes."""
    headers = {"mtime": "1.5", "SCHILY.xattr.user.x": "a=b\nc", "comment": "x" * 3000}
    entries = [Entry(entry.name, fields={"pax_headers": headers}) for entry in some_images()]
    source = open_archive(tmp_path / "source", tar_of(entries, headers={"comment": "of all"}))
    assert len(contents_of(source)) == 6


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


def inner(name: str, *entries: Entry, codec: str = "") -> Entry:
    return Entry(name, packed(tar_of(entries), codec))


@by_codec
def test_archives_of_a_class_within_an_archive(codec: str, tmp_path: Path) -> None:
    """As ImageNet's: a tar for each class, which keeps its place among the others."""
    images = {name: [Entry(f"{name}_{size}.JPEG", b"x" * size) for size in (700, 0, 512)] for name in ("n0", "n1")}
    tars = [inner(f"whole/{name}.tar", *entries) for name, entries in images.items()]
    archive = tar_of([Entry("._n0.tar", b"of a Mac"), *tars, Entry("whole/readme.md", b"no image")])
    source = open_archive(tmp_path / "source", packed(archive, codec), f"ILSVRC_train{SUFFIXES[codec]}")
    assert source.classes == list(images)
    assert contents_of(source) == {
        f"ILSVRC_train/whole/{name}/{entry.name}": entry.data for name, entries in images.items() for entry in entries
    }
    assert {image.split for image in source.images} == {"train"}
    assert source.skipped == 2


def test_a_letter_with_an_accent_is_one_in_either_form_of_unicode() -> None:
    names = ("pr\u00e9test.tar", "pre\u0301test.tar", "pre-test.tar")
    assert [split_of(name) for name in names] == [None, None, "test"]


def test_class_and_split_of_an_archive_within_an_archive(tmp_path: Path) -> None:
    entries = [inner("train/a.tar", Entry("1.jpg"), Entry("x/2.jpg")), inner("val/b/a.TAR", Entry("3.jpg"))]
    keys = ["train/a/1.jpg", "train/a/x/2.jpg", "val/b/a/3.jpg"]
    splits = ["train", "train", "validation"]
    assert listed(tmp_path, entries, split_folders=True) == list(zip(keys, "aaa", splits, strict=True))
    assert [label for _, label, _ in listed(tmp_path, entries)] == ["a"] * 3
    by_split = [inner("test.tar", Entry("a/1.jpg")), inner("seg_train.tar", Entry("b/2.jpg"))]
    first, second = ("test/a/1.jpg", "a", "test"), ("seg_train/b/2.jpg", "b", "train")
    assert listed(tmp_path, by_split, split_folders=True) == [first, second]
    with_text = [inner("a.tar", Entry("1.cls", b"c"), Entry("1.jpg"))]
    assert listed(tmp_path, with_text) == [("a/1.jpg", "c", None)]


def shard(numbers: Sequence[int]) -> list[Entry]:
    """A shard as writers of WebDataset make it: a label, a text and a JSON for each image."""
    return [
        Entry(f"{number:05d}{suffix}", data.encode())
        for number in numbers
        for suffix, data in (
            (".cls", f"{number % 3}"),
            (".jpg", f"image {number}"),
            (".json", json.dumps({"width": number, "url": None})),
            (".txt", f"a caption of {number}\n"),
        )
    ]


@by_codec
def test_shards_of_webdataset(codec: str, tmp_path: Path) -> None:
    """With tables of each shard beside it, as img2dataset leaves them."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(3):
        data = packed(tar_of(shard(range(10 * number, 10 * number + 10))), codec)
        (folder / f"train-{number:05d}{SUFFIXES[codec]}").write_bytes(data)
        (folder / f"train-{number:05d}.parquet").write_bytes(b"PAR1")
        (folder / f"train-{number:05d}_stats.json").write_text("{}")
    (folder / "index.json").write_text("{}")
    source = open_source(open_place(str(folder)))
    assert [image.key for image in source.images] == [f"train-{n // 10:05d}/{n:05d}.jpg" for n in range(30)]
    assert list(contents_of(source).values()) == [f"image {number}".encode() for number in range(30)]
    assert (source.classes, source.skipped) == (["0", "1", "2"], 0)
    assert [image.label for image in source.images] == [number % 3 for number in range(30)]
    assert {image.split for image in source.images} == {"train"}
    assert source.images[7].columns == (("txt", "a caption of 7"), ("width", "7"))
    assert [image.position[0] for image in source.images] == [number // 10 for number in range(30)]
    (folder / "another.parquet").write_bytes(b"PAR1")
    refused(folder, UsageError, "no images in")


def listed(folder: Path, entries: list[Entry], **options: Any) -> list[tuple[str, str, str | None]]:
    source = open_archive(folder / "source", tar_of(entries), options=SourceOptions(**options))
    return [(each.key.removeprefix("some/"), source.classes[each.label], each.split) for each in source.images]


def test_where_a_label_stands(tmp_path: Path) -> None:
    both = [Entry("a/1.json", b'{"label": "json", "kind": 7}'), Entry("a/1.cls", b" cls\n"), Entry("a/1.png")]
    assert listed(tmp_path, both) == [("a/1.png", "cls", None)]
    assert listed(tmp_path, both, label_column="label") == [("a/1.png", "json", None)]
    assert listed(tmp_path, both, classes=("cls", "other")) == [("a/1.png", "cls", None)]
    by_number = [Entry("1.cls", b"\xef\xbb\xbf1"), Entry("1.png")]
    assert listed(tmp_path, by_number, classes=("cat", "dog")) == [("1.png", "dog", None)]
    without = [Entry("a/1.json", b'{"label": null}'), Entry("a/1.png"), Entry("b/deep/2.png")]
    assert listed(tmp_path, without) == [("a/1.png", "a", None), ("b/deep/2.png", "b", None)]
    many = [Entry("a/1.2.png"), Entry("a/1.3.png"), Entry("a/1.png"), Entry("b/1.png")]
    assert [label for _, label, _ in listed(tmp_path, many)] == ["a", "a", "a", "b"]


def test_where_a_split_stands(tmp_path: Path) -> None:
    folders = [Entry("train/a/1.png"), Entry("val/a/1.json", b'{"split": "test"}'), Entry("val/a/1.png")]
    found = listed(tmp_path, folders, split_folders=True)
    assert found == [("train/a/1.png", "a", "train"), ("val/a/1.png", "a", "test")]
    samples = [Entry("val/1.cls", b"c"), Entry("val/1.png"), Entry("2.cls", b"d"), Entry("2.png")]
    assert listed(tmp_path, samples, split_folders=True) == [("val/1.png", "c", "validation"), ("2.png", "d", None)]
    named = [Entry("seg_test/1.cls", b"c"), Entry("seg_test/1.png")]  # as with folders of classes
    assert listed(tmp_path, named, split_folders=True) == [("seg_test/1.png", "c", "test")]
    with pytest.raises(UsageError, match="strange names no split"):
        listed(tmp_path, [Entry("strange/1.cls", b"c"), Entry("strange/1.png")], split_folders=True)
    (tmp_path / "source" / "some.tar").unlink()
    source = open_archive(tmp_path / "source", tar_of(some_images()), "my-test-0.tar")
    assert {image.split for image in source.images} == {"test"}


def test_texts_become_columns(tmp_path: Path) -> None:
    """Of .json as in JSON Lines; what is too long, or is nothing known, is counted."""
    entries = [
        Entry("1.json", b'{"label": "c", "text": "\\u00e9\\n", "n": 3, "list": [1], "nan": NaN, "inf": 1e999}'),
        Entry("1.png"),
        Entry("1.txt", b"x" * 10_001),
        *(Entry("2.cls", b"c"), Entry("2.png"), Entry("2.txt", b"caf\xe9")),
        *(Entry("3.cls", b"c"), Entry("3.png"), Entry("3.depth.npy", b"1234")),
        Entry("4.txt", b"of no image"),
    ]
    source = open_archive(tmp_path / "source", tar_of(entries))
    columns = [image.columns for image in source.images]
    assert columns == [(("n", "3"), ("text", "\u00e9\n")), (("txt", "caf\ufffd"),), None]
    assert source.skipped == 3


INNER = tar_of([Entry("1.jpg", b"1")])
BAD: dict[str, tuple[dict[str, bytes], dict[str, Any], str]] = {
    "no label": ({"1.jpg": b""}, {}, "'1.jpg' of .*some.tar has no label: name it as in CLASS/IMAGE.jpg"),
    "no split": ({"new/a/1.jpg": b""}, {"split_folders": True}, "some.tar/new names no split"),
    "words of splits": ({"seg_train/1.jpg": b"", "seg_test/1.jpg": b""}, {}, "look like splits, not classes"),
    "a folder around": ({"all/a/1.jpg": b"", "all/b/1.jpg": b""}, {}, "below 'all', which would be"),
    "a folder within splits": ({"val/all/a/1.jpg": b""}, {"split_folders": True}, "below 'all', which would be"),
    "a label apart": (
        {"a/1.jpg": b"", "a/2.jpg": b"", "a/1.cls": b"a"},
        {},
        "'a/1.cls' .* has no image beside it with the key 'a/1': .* --sort=name",
    ),
    "dots in a key": (
        {"b/a.1.jpg": b"", "b/a.1.cls": b"a"},
        {},
        "'b/a.1.jpg' .* no label; 'b/a.1.cls' is not beside it: .* the key 'b/a': .* up to the first dot .* rename",
    ),
    "a JSON apart": ({"a/1.jpg": b"", "meta.json": b"{}"}, {}, "'meta.json' .* has no image beside it"),
    "one label for two": ({"1.cls": b"a", "1.jpg": b"", "1.seg.png": b""}, {}, "'1.seg.png' .* share"),
    "one name by two ways": ({"b.tar": INNER, "b/1.jpg": b""}, {}, "the key some/b/1.jpg comes twice"),
    "archives thrice": ({"c.tar": tar_of([Entry("b.tar", INNER)])}, {}, "'c.tar' in .*some.tar contains .* 'b.tar'"),
    "no image": ({"a/readme.md": b""}, {}, "no images in .*some.tar; expected members such as"),
    "a long text": ({"1.jpg": b"", "1.cls": b"a" * 1001}, {}, "has more than 1000 bytes"),
    "no text": ({"1.jpg": b"", "1.cls": b"\xff\xfe"}, {}, "'1.cls' .* is not UTF-8"),
    "deep JSON": ({"1.jpg": b"", "1.json": b"[" * 100_000}, {}, "'1.json' .* is not JSON"),
    "a label of parts": ({"1.jpg": b"", "1.json": b'{"label": ["a"]}'}, {}, "no text and no whole number"),
    "no such label": (
        {"1.jpg": b"", "1.json": b'{"label": "a"}'},
        {"label_column": "kind"},
        "no .json with the field 'kind' .* correct --label-column",
    ),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.usefixtures("no_collection")
def test_an_unclear_label_split_or_layout_is_refused(bad: str, tmp_path: Path) -> None:
    members, options, line = BAD[bad]
    entries = [Entry(name, data) for name, data in members.items()]
    with pytest.raises(UsageError, match=line) as raised:
        open_archive(tmp_path / "source", tar_of(entries), options=SourceOptions(**options))
    assert str(raised.value).isprintable()

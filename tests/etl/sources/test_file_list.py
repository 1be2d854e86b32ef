"""Lists as a source, CSV and JSON Lines: columns, files, and errors by their line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from etl.errors import DataError, UsageError
from etl.sources.base import Source, SourceOptions
from etl.sources.detect import open_source
from etl.storage.place import Place, open_place
from tests.lib.inline import ingest_here
from tests.lib.sources.archives import contents_of, refused
from tests.lib.sources.packed import packed_images
from tests.lib.sources.parquet_images import some_bytes, write_file

each_form = pytest.mark.parametrize("name", ["list.csv", "list.jsonl"])


def write_images(place: Place) -> Place:
    for number in range(10):
        write_file(place / "i" / f"{number}.jpg", some_bytes(number))
    return place


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return write_images(open_place(str(tmp_path / "source")))


def rows_of(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"path": f"i/{number}.jpg", "label": "cd"[number % 2], **more} for number in range(count)]


def write_list(place: Place, name: str, *rows: Mapping[str, Any]) -> Place:
    lines = [json.dumps(row) for row in rows]
    if name == "list.csv":
        lines = [",".join(rows[0]) + "\r", *(",".join(map(str, row.values())) + "\r" for row in rows)]
    return write_file(place / name, "".join(f"{line}\n" for line in lines).encode())


def read(source: Source) -> list[bytes]:
    return list(contents_of(source).values())


@each_form
def test_keys_are_paths_in_the_shortest_form(root: Place, name: str) -> None:
    write_images(root)
    rows = [{"path": path, "label": "x", "patient": ""} for path in ("i/3.jpg", "./i//1.jpg", "i/../i/2.jpg")]
    source = open_source(write_list(root, name, *rows))
    assert (source.kind, source.skipped, source.pixels) == ("list", 0, None)
    assert contents_of(source) == {f"i/{number}.jpg": some_bytes(number) for number in (3, 1, 2)}
    assert [image.version for image in source.images] == [(root / image.key).info().mtime_ns for image in source.images]
    assert {image.columns for image in source.images} == {None if name == "list.csv" else (("patient", ""),)}


@each_form
def test_paths_may_be_absolute_or_uris(here: Place, name: str, tmp_path: Path) -> None:
    write_file(here / "i" / "ä %.jpg", some_bytes(3))
    paths = [f"{here.path}/i/0.jpg", f"file://{here.path}/i/1.jpg", f"/{here.path}/i/2.jpg"]
    paths.append(f"file:{here.path}/i/%C3%A4%20%25.jpg")
    rows = [{"path": path, "label": "x"} for path in paths]
    source = open_source(write_list(open_place(str(tmp_path / "elsewhere")), name, *rows))
    assert read(source) == [some_bytes(number) for number in range(4)]
    below = here.path.lstrip("/")
    assert [image.key for image in source.images] == [f"{below}/i/{each}.jpg" for each in (0, 1, 2, "ä %")]


def test_a_list_may_name_files_on_hdfs(hdfs_root: Place, here: Place) -> None:
    write_file(hdfs_root / "i" / "far.jpg", some_bytes(77))
    rows = [{"path": f"{hdfs_root}/i/far.jpg", "label": "x"}, {"path": "i/1.jpg", "label": "y"}]
    source = open_source(write_list(here, "list.csv", *rows))
    assert read(source) == [some_bytes(77), some_bytes(1)]
    assert [image.key for image in source.images] == [f"{hdfs_root.path.lstrip('/')}/i/far.jpg", "i/1.jpg"]
    assert read(open_source(write_list(hdfs_root, "list.csv", {"path": "i/far.jpg", "label": "x"}))) == [some_bytes(77)]
    refused(write_list(hdfs_root, "list.csv", {"path": "i/none.jpg", "label": "x"}), UsageError, "no such file")


@each_form
def test_columns_are_chosen_or_named(here: Place, name: str) -> None:
    file = write_list(here, name, {"path": "i/1.jpg", "file": "i/2.jpg", "class": "x", "fold": "val"})
    chosen = {"image_column": "file", "label_column": "class", "split_column": "fold"}
    (image,) = (source := open_source(file, SourceOptions(**chosen))).images  # type: ignore[arg-type]
    assert read(source) == [some_bytes(2)]
    assert (image.split, image.columns) == ("validation", (("path", "i/1.jpg"),))
    refused(file, UsageError, str(file), "several columns of paths, path, file", "--image-column")
    refused(file, UsageError, "no column label", "path, file, class, fold", image_column="file")
    refused(file, UsageError, "no column x (--image-column)", "path, file", image_column="x")
    refused(file, UsageError, "--label-column y: no such column", "path, file", **chosen | {"label_column": "y"})
    refused(file, UsageError, "--split-column z: no such column", "path, file", **chosen | {"split_column": "z"})
    refused(write_list(here, name, {"a": 1, "label": 2}), UsageError, "no column of paths", "a, label")


def test_values_of_json_become_text_and_the_rest_is_reported(here: Place, capfd: pytest.CaptureFixture[str]) -> None:
    more: dict[str, Any] = {"n": 3, "x": 0.5, "yes": True, "none": None, "boxes": [1], "camera": {}}
    rows = [*rows_of(1, **more), {"path": "i/1.jpg", "label": True, "late": "z", "split": "test"}]
    source = open_source(write_list(here, "list.jsonl", *rows))
    assert source.classes == ["c", "true"]
    assert [image.split for image in source.images] == [None, "test"]  # also if the first line has no such field
    assert source.images[0].columns == (("n", "3"), ("x", "0.5"), ("yes", "true"))
    assert source.images[1].columns == (("late", "z"),)
    assert "columns that are neither text nor numbers are left out: boxes, camera\n" in capfd.readouterr().err


def test_quotes_line_ends_and_a_byte_order_mark(here: Place) -> None:
    text = '\ufeff"path",label,note\n\r\n"i/0.jpg",c,"two\r\nlines, ""quoted"""\n"i/1.jpg",ü,'
    source = open_source(write_file(here / "LIST.CSV", text.encode()))
    assert read(source) == [some_bytes(0), some_bytes(1)]
    assert source.images[0].columns == (("note", 'two\r\nlines, "quoted"'),)
    assert source.classes == ["c", "ü"]
    source = open_source(write_file(here / "list.ndjson", b'\xef\xbb\xbf\n{"path":"i/0.jpg","label":"c"}\n\n'))
    assert read(source) == [some_bytes(0)]


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"path": ""}, ["has no path"]),
        ({"path": "i/none.jpg"}, ["i/none.jpg: no such file", "correct the path, or leave the line out"]),
        ({"path": "i"}, ["source/i: it is not a file"]),
        ({"path": "../source/i/1.jpg"}, ["leads out of the list's folder", "give the absolute path"]),
        ({"path": "i/\x1b[31m.jpg"}, ["cannot be a key", "control characters"]),
        ({"path": "http://example.org/1.jpg"}, ["http://example.org/1.jpg cannot be opened", "download it first"]),
        ({"label": None}, ["a label that is empty"]),
        ({"label": 0.5}, ["the label 0.5; labels are text"]),
    ],
)
def test_lines_that_cannot_be_are_named(here: Place, change: dict[str, Any], lines: list[str]) -> None:
    """In a CSV if all is text, else in JSON Lines."""
    rows = rows_of(4, split="train")
    rows[2] |= change
    is_text = all(isinstance(value, str) for value in change.values())
    file = write_list(here, "list.csv" if is_text else "list.jsonl", *rows)
    refused(file, UsageError, f"line {4 if is_text else 3} of {file}", *lines)


START = b'{"path": "i/0.jpg", "label": "x"}\n\n{"path": "i/1.jpg", "label": "x"'


@pytest.mark.parametrize(
    ("name", "data", "line", "cause"),
    [
        ("list.jsonl", START, 3, "not JSON (Expecting"),
        ("list.jsonl", START + b', "x": "\\ud800"}', 3, "not UTF-8 (surrogates not allowed"),
        ("list.jsonl", b'["i/1.jpg", "x"]', 1, "not a JSON object"),
        ("list.jsonl", b"[" * 100_000, 1, "not JSON (maximum recursion depth"),
        ("list.csv", b"path,label\ni/1.jpg\n", 2, "cannot be read: it has 1 cells, the header 2"),
        ("list.csv", b'path,label,z\ni/1.jpg,x,"two\nlines"\ni/2.jpg,"x\ni/3.jpg,y\n', 4, "is a quote missing"),
        ("list.csv", b'path,label\n"' + b"x\n" * 200_000, 2, "field larger than field limit"),
        ("list.csv", b"path,label\ni/1.jpg,\xff\n", 2, "not UTF-8 (invalid start byte)"),
        ("list.csv", b"path,label,label\n", 1, "a name of its own for each column, not path, label, label"),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_a_line_that_cannot_be_read_is_named(here: Place, name: str, data: bytes, line: int, cause: str) -> None:
    file = write_file(here / name, data)
    refused(file, DataError, f"line {line} of {file}", cause)


@each_form
def test_an_image_comes_once_and_an_empty_list_is_refused(here: Place, name: str) -> None:
    for nothing in (b"", b"path,label\n" if name == "list.csv" else b"\n\n"):
        refused(write_file(here / name, nothing), UsageError, "no images in", "a line for each")
    file = write_list(here, name, *rows_of(3), {"path": "./i/1.jpg", "label": "c"})
    lines = [f"in line {line + (name == 'list.csv')} of {file}" for line in (2, 4)]
    refused(file, UsageError, f"the key i/1.jpg comes twice: {' and '.join(lines)}")


def test_many_files_keep_their_order(here: Place) -> None:
    """More than are looked up at once."""
    numbers = range(1200)[::-1]
    for number in numbers:
        Path(here.path, f"{number}.jpg").write_bytes(bytes(number % 7 + 1))
    source = open_source(write_list(here, "list.csv", *({"path": f"{number}.jpg", "label": "x"} for number in numbers)))
    assert [image.size_bytes for image in source.images] == [number % 7 + 1 for number in numbers]


def test_a_table_adds_to_the_columns_of_a_list(here: Place, tmp_path: Path) -> None:
    file = write_list(here, "list.csv", *rows_of(3, age=30, ward="x"))
    table = write_file(here / "table.csv", b"key,patient,age\ni/0.jpg,p0,31\ni/1.jpg,p1,\n")
    ingest_here(file, tmp_path / "root", columns=str(table))
    found = packed_images(open_place(str(tmp_path / "root")))
    assert [found[f"i/{number}.jpg"].columns for number in range(3)] == [
        {"age": "31", "patient": "p0", "ward": "x"},
        {"age": "30", "patient": "p1", "ward": "x"},
        {"age": "30", "ward": "x"},
    ]

"""Parquet files as a source: columns, rows and bytes, and errors in one line."""

import datetime
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from etl.errors import DataError, UsageError
from etl.sources.base import SourceOptions
from etl.sources.detect import open_source
from etl.storage.place import Place, open_place
from tests.lib.commands import peak_growth_bytes
from tests.lib.sources.archives import contents_of, refused
from tests.lib.sources.parquet_images import (
    NAMES,
    class_label,
    image_column,
    image_table,
    some_bytes,
    write_file,
    write_parquet,
)


@pytest.fixture
def here(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "source"))


def test_paths_give_splits_and_keys(root: Place) -> None:
    place = root / "source"
    files = {"data/test/0000": range(40, 45), "test_data/val": range(45, 46), "train-00000-of-00001": range(40)}
    for name, rows in files.items():
        write_parquet(place / f"{name}.parquet", image_table(len(rows), rows[0]), row_group_size=7)
    write_file(place / "README.md", b"# a card")
    source = open_source(place)
    assert (source.kind, source.classes, source.skipped, source.pixels) == ("parquet", NAMES, 0, None)
    assert contents_of(source) == {
        f"{name}/{number:08d}": some_bytes(row) for name, rows in files.items() for number, row in enumerate(rows)
    }
    splits = {"train": "train", "data/": "test", "test_": "validation"}
    assert {image.key[:5]: image.split for image in source.images} == splits
    assert [image.label for image in source.images] == [row % 3 for rows in files.values() for row in rows]


@pytest.mark.parametrize(
    ("kind", "labels", "classes", "numbers"),
    [
        (pa.binary(), pa.array(["b", "a", "b"]), ["a", "b"], [1, 0, 1]),
        (pa.large_binary(), pa.array([10, 9, -1], pa.int8()), ["9", "10", "-1"], [1, 0, 2]),
        (pa.binary(), pa.array([True, False, True]), ["false", "true"], [1, 0, 1]),
        (pa.binary(), pa.array(["z", "y", "z"]).dictionary_encode(), ["y", "z"], [1, 0, 1]),
    ],
    ids=["text", "integers", "booleans", "dictionary"],
)
def test_plain_columns_of_bytes_and_labels_of_any_type(
    here: Place, kind: pa.DataType, labels: pa.Array, classes: list[str], numbers: list[int]
) -> None:
    images = [some_bytes(row) for row in range(3)]
    write_parquet(here / "x.pq", pa.table({"id": [1, 2, 3], "jpeg": pa.array(images, kind), "labels": labels}))
    source = open_source(here)
    assert list(source.read_all(source.images)) == images
    assert (source.classes, [image.label for image in source.images]) == (classes, numbers)
    assert [image.columns for image in source.images] == [(("id", str(number)),) for number in (1, 2, 3)]
    assert {image.split for image in source.images} == {None}


def test_other_scalars_become_columns(here: Place, capfd: pytest.CaptureFixture[str]) -> None:
    table = image_table(
        3,
        patient=pa.array(["p1", None, "ä"]),
        age=pa.array([30, 31, None], pa.uint8()),
        weight=[1.5, None, 0.1],
        ill=[True, None, False],
        day=pa.array([datetime.date(2026, 1, 2), None, None]),
        at=pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5), None, None], pa.timestamp("s")),
        ward=pa.array(["x", None, "y"]).dictionary_encode(),
        boxes=[[1], [2], []],
        camera=[{"make": "a"}] * 3,
    )
    for name in ("a", "b"):
        write_parquet(here / f"{name}.parquet", table)
    source = open_source(here)
    first = {"age": "30", "at": "2026-01-02 03:04:05.000", "day": "2026-01-02", "ill": "true", "patient": "p1"}
    assert source.images[0].columns == tuple(sorted((first | {"ward": "x", "weight": "1.5"}).items()))
    assert source.images[1].columns == (("age", "31"),)
    assert source.images[2].columns == (("ill", "false"), ("patient", "ä"), ("ward", "y"), ("weight", "0.1"))
    assert source.skipped == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if "left out" in line]
    assert lines == ["ringslice ingest: columns that are neither text nor numbers are left out: boxes, camera"]


def test_the_names_of_numbers(here: Place) -> None:
    write_parquet(here / "a.parquet", image_table(2))  # 0 and 1: no image of an owl
    assert open_source(here).classes == NAMES
    assert open_source(here, SourceOptions(known=("dog", "fox"))).classes == ["dog", "fox", "cat", "owl"]
    source = open_source(here, SourceOptions(classes=("owl", "dog", "cat")))
    assert [source.classes[image.label] for image in source.images] == ["cat", "dog"]
    refused(here, UsageError, "a.parquet has the label 'cat'", "not one of the 2 --classes", classes=("dog", "owl"))


@pytest.mark.parametrize(
    ("metadata", "cause"),
    [
        ({"huggingface": "[" * 100_000}, "is not JSON"),
        (class_label(["a", 1]), "not a list of text"),
        (class_label(["a", "a"]), "a class of the column label more than once"),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_damaged_names_of_classes_are_errors(here: Place, metadata: dict[str, str], cause: str) -> None:
    file = write_parquet(here / "a.parquet", image_table(2).replace_schema_metadata(metadata))
    refused(here, DataError, str(file), cause)


def test_a_split_column_goes_before_the_names_of_files(here: Place) -> None:
    write_parquet(here / "train" / "a.parquet", image_table(4, split=["test", "val", None, ""]))
    assert [image.split for image in open_source(here).images] == ["test", "validation", "train", "train"]
    write_parquet(here / "train" / "a.parquet", image_table(2, split=[1, 2]))
    refused(here, UsageError, "the column split of", "is int64; splits are text")


def test_the_column_of_images(here: Place) -> None:
    table = image_table(2)
    file = write_parquet(here / "a.parquet", table.append_column("mask", pa.array([b"m0", b"m1"])))
    refused(here, UsageError, str(file), "several columns with bytes, image, mask", "--image-column")
    source = open_source(here, SourceOptions(image_column="mask"))
    assert list(source.read_all(source.images)) == [b"m0", b"m1"]
    lines = ("no column label with image bytes (--image-column)", "label (int64)")
    refused(here, UsageError, *lines, image_column="label")
    refused(here, UsageError, "mask of", "keys are text or integers", image_column="image", key_column="mask")
    write_parquet(here / "a.parquet", table.drop_columns("image").append_column("url", pa.array(["x", "y"])))
    refused(here, UsageError, "no column with image bytes", "label (int64), url (string)", "'bytes' of a struct")
    write_parquet(here / "a.parquet", table.rename_columns(["image", "class"]))
    refused(here, UsageError, "no column label", "image, class", "--label-column")
    assert open_source(here, SourceOptions(label_column="class")).classes == ["0", "1"]
    write_parquet(here / "a.parquet", table.append_column("label", pa.array([1, 2])))
    refused(here, UsageError, "the column label more than once")


@pytest.mark.parametrize(
    ("column", "values", "lines"),
    [
        ("image", image_column([b"x", b"y", None, b"z"]), ["row 2 of", "no image bytes", "embed_table_storage"]),
        ("label", pa.array([0, 1, 2, None]), ["row 3 of", "has no label in the column label"]),
        ("label", pa.array([0, 1, 3, 3]), ["row 2 of", "has the label 3", "the classes 0 to 2"]),
        ("label", pa.array([0.5] * 4), ["the column label of", "is double", "integers, text or booleans"]),
        ("id", pa.array([1, None, 2, 3]), ["row 1 of", "'' cannot be a key"]),
    ],
)
def test_rows_that_cannot_be_are_named(here: Place, column: str, values: pa.Array, lines: list[str]) -> None:
    table = image_table(4, id=range(4))
    file = here / "train" / "a.parquet"
    write_parquet(file, table.set_column(table.column_names.index(column), column, values), row_group_size=2)
    refused(here, UsageError, str(file), *lines, key_column="id" if column == "id" else None)


def test_files_must_agree(here: Place) -> None:
    first = write_parquet(here / "a.parquet", image_table(2))
    second = write_parquet(here / "b.parquet", image_table(2, names=["dog", "cat", "owl"]))
    refused(here, UsageError, str(first), str(second), "differ in the names of classes", "dog, cat, owl")
    write_parquet(second, image_table(2, names=None))
    refused(here, UsageError, str(second), "; none)")
    write_parquet(second, image_table(2).slice(0, 0))
    assert len(open_source(here).images) == 2
    write_parquet(first, image_table(0))
    refused(here, UsageError, "no images in", "no rows")
    write_parquet(here / "a.pq", image_table(2))
    refused(here, UsageError, "the key a comes twice")
    write_parquet(here / "a\nb.pq", image_table(2))
    refused(here, UsageError, "'a\\nb' cannot be a key, because it has control characters; rename it")


def test_a_file_that_is_not_whole_is_an_error(here: Place) -> None:
    file = write_parquet(here / "a.parquet", image_table(9))
    data = file.read_bytes()
    html = b"<html>\x1b[31m no </html>\n" * 9
    for spoiled in (b"", data[:-1], html, data[:-8] + b"\xff\xff\xff\x7fPAR1", data[:4] + data[-300:]):
        write_file(file, spoiled)
        refused(here, DataError, str(file), "cannot be read as a Parquet file: ", "fetch or write it again")


@pytest.mark.parametrize(
    ("of_file", "of_group", "cause"),
    [
        (101, 100, "it has 100 rows, and its footer records 101"),
        (101, 101, "row group 0 does not have the number of rows"),
        (100, -100, "cannot be read as a Parquet file: "),
    ],
)
def test_no_row_is_lost_if_a_footer_is_wrong(here: Place, of_file: int, of_group: int, cause: str) -> None:
    file = write_parquet(here / "a.parquet", image_table(100))
    data = file.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:]
    # i64 fields in Thrift's compact form, known by what follows: the list of row groups, the offset of a row group
    for number, following in ((of_file, b"\x19\x1c"), (of_group, b"\x26\x08")):
        assert footer.count(rows_field(100) + following) == 1
        footer = footer.replace(rows_field(100) + following, rows_field(number) + following)
    write_file(file, data[:start] + footer)
    refused(here, DataError, str(file), cause)


def rows_field(number: int) -> bytes:
    """A field of 64 to 8191 or of -64 to -8192, one after the field before: two bytes of a zigzag varint."""
    zigzag = 2 * number if number >= 0 else -2 * number - 1
    return bytes([0x16, zigzag & 0x7F | 0x80, zigzag >> 7])


def test_a_flipped_bit_in_a_checked_page_is_found(here: Place) -> None:
    file = write_parquet(here / "a.parquet", image_table(9), compression="none", write_page_checksum=True)
    data = bytearray(file.read_bytes())
    data[data.index(some_bytes(3))] ^= 1
    write_file(file, bytes(data))
    refused(here, DataError, str(file), "CRC checksum")


def test_another_file_of_the_same_time_is_found(here: Place) -> None:
    """By the length of the image that is wanted."""
    table = image_table(9)
    file = write_parquet(here / "a.parquet", table)
    source = open_source(here)
    stat = os.stat(file.path)
    for another in (image_table(9, first=1), image_table(3), table):
        write_parquet(file, another)
        os.utime(file.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if another is not table:
            with pytest.raises(DataError, match=r"a\.parquet changed while it was read"):
                list(source.read_all(source.images[4:5]))
    assert list(source.read_all(source.images[4:5])) == [some_bytes(4)]


@pytest.mark.integration
def test_memory_goes_by_pages_and_not_by_row_groups(here: Place) -> None:
    """A row group of 192 MiB, in pages of 1 MiB: a process that lists and reads it grows by little."""
    row = np.random.default_rng(1).bytes(100 << 10)
    count = 1920
    table = pa.table({"image": image_column([row] * count), "label": ["x"] * count})
    options = {"use_dictionary": False, "write_batch_size": 8, "compression": "none"}
    write_parquet(here / "a.parquet", table, row_group_size=count, **options)
    imports = ("etl.sources.detect import open_source", "etl.storage.place import open_place")
    prepare = "\n".join(["import pyarrow.parquet, pyarrow.compute", *(f"from {each}" for each in imports)])
    work = f"source = open_source(open_place({here.path!r}))\n"
    work += f"assert sum(map(len, source.read_all(source.images))) == {count * len(row)}"
    assert peak_growth_bytes(prepare, work) < 150 << 20

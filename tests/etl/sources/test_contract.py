"""What each kind of source must do: archives, plain and packed, Parquet files, and lists."""

import json
import os
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from etl.errors import DataError, UsageError
from etl.sources.base import Source, SourceOptions
from etl.sources.detect import open_source
from etl.storage.place import Place, open_place
from tests.lib.damage.sources import try_list, try_source
from tests.lib.damage.trials import Trial, run_trials
from tests.lib.inline import ingest_here
from tests.lib.sources.archives import Entry, contents_of, packed, refused, tar_of
from tests.lib.sources.packed import packed_images
from tests.lib.sources.parquet_images import image_column, some_bytes, write_file, write_parquet

CODECS = {"tar": "", "tar.gz": "gzip", "tar.zst": "zstd"}
LISTS = ("csv", "jsonl")
KINDS = (*CODECS, "parquet", *LISTS)
CLASSES = ["cat", "dog", "owl"]

by_kind = pytest.mark.parametrize("kind", KINDS)


Rows = Mapping[int, Mapping[str, Any]]


def write_fields(place: Place, kind: str, rows: Rows, name: str = "some") -> Place:
    """Images by number, each with the fields of its row. What to ingest."""
    file = place / f"{name}.{kind}"
    if kind in CODECS:
        entries = [
            Entry(f"{number:03d}.{suffix}", data)
            for number, row in rows.items()
            for suffix, data in (("png", some_bytes(number)), ("json", json.dumps(row).encode()))
        ]
        write_file(file, packed(tar_of(entries), CODECS[kind]))
    elif kind == "parquet":
        columns = {name: [row[name] for row in rows.values()] for name in next(iter(rows.values()))}
        table = pa.table({"image": image_column([some_bytes(number) for number in rows]), **columns})
        write_parquet(file, table, row_group_size=8, data_page_size=200)
    else:
        for number in rows:
            if not (place / "i" / f"{number}.png").exists():
                write_file(place / "i" / f"{number}.png", some_bytes(number))
        lines = [{"path": f"i/{number}.png", **row} for number, row in rows.items()]
        cells = [list(lines[0]), *(["" if cell is None else str(cell) for cell in line.values()] for line in lines)]
        text = map(",".join, cells) if kind == "csv" else map(json.dumps, lines)
        return write_file(file, "\n".join(text).encode())
    return place


def write(place: Place, kind: str, **splits: range) -> Place:
    """Images by number, in a file, or in lines of a list, for each split; files that are there stay. What to ingest."""
    of_list: dict[int, dict[str, str]] = {}
    for split, numbers in splits.items():
        rows = {number: {"label": CLASSES[number % 3], "patient": f"p{number % 5}"} for number in numbers}
        of_list |= {number: {**row, "split": split} for number, row in rows.items()}
        if kind not in LISTS and not (place / f"{split}-0.{kind}").exists():
            write_fields(place, kind, rows, f"{split}-0")
    return write_fields(place, kind, of_list, "list") if kind in LISTS else place


def opened(folder: Path, kind: str) -> Source:
    return open_source(write(open_place(str(folder / "source")), kind, train=range(40), test=range(40, 60)))


FIELDS = ("tar", "parquet", *LISTS)  # an image of these has fields by name

each_format = pytest.mark.parametrize("kind", FIELDS)


@each_format
def test_labels_splits_and_columns(kind: str, tmp_path: Path) -> None:
    rows = [
        {"label": "10", "split": "Val", "fold": "test", "age": 30, "patient": "p1", "other": None},
        {"label": "9", "split": "train", "fold": "dev", "age": 31, "patient": None, "other": "train"},
    ]
    place = write_fields(open_place(str(tmp_path / "source")), kind, dict(enumerate(rows)))
    first, second = (source := open_source(place)).images
    assert list(contents_of(source).values()) == [some_bytes(0), some_bytes(1)]
    assert source.classes == ["9", "10"]
    assert [(each.label, each.split) for each in (first, second)] == [(1, "validation"), (0, "train")]
    assert dict(first.columns or ()) == {"age": "30", "fold": "test", "patient": "p1"}
    assert dict(second.columns or ()) == {"age": "31", "fold": "dev", "other": "train"}
    chosen = open_source(place, SourceOptions(label_column="age", split_column="fold"))
    assert [chosen.classes[each.label] for each in chosen.images] == ["30", "31"]
    assert [each.split for each in chosen.images] == ["test", "validation"]
    assert dict(chosen.images[0].columns or ()) == {"label": "10", "patient": "p1", "split": "Val"}
    chosen = open_source(place, SourceOptions(split_column="other"))
    assert [each.split for each in chosen.images] == [None, "train"]


@each_format
def test_classes_name_the_numbers_of_labels(kind: str, tmp_path: Path) -> None:
    place = write_fields(open_place(str(tmp_path / "source")), kind, {0: {"label": 1}, 1: {"label": 0}})
    source = open_source(place, SourceOptions(classes=("cat", "dog", "owl")))
    assert [source.classes[each.label] for each in source.images] == ["dog", "cat"]
    refused(place, UsageError, "the label '1', which is not one of the 1 --classes", classes=("cat",))
    # names that are numbers of other lines: no label is the number of a line
    refused(place, UsageError, "the label '0', which is not one of the 2 --classes", classes=("1", "3"))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"label": ""}, "a label that is empty"),
        ({"label": "a\x07b"}, "control characters: 'a\\x07b'"),
        ({"label": "x" * 1001}, "1001 bytes"),
        ({"split": "new"}, "the split 'new'"),
    ],
    ids=["empty", "control characters", "long", "split"],
)
@each_format
def test_a_field_that_cannot_be_is_named(kind: str, change: dict[str, Any], cause: str, tmp_path: Path) -> None:
    rows = {number: {"label": "a", "split": "train"} for number in range(3)}
    rows[1] |= change
    where = {"tar": "'001.json'", "parquet": "row 1 of", "csv": "line 3 of", "jsonl": "line 2 of"}[kind]
    refused(write_fields(open_place(str(tmp_path / "source")), kind, rows), UsageError, where, cause)


@pytest.mark.parametrize("kind", ["parquet", *LISTS])
def test_a_column_of_keys(kind: str, tmp_path: Path) -> None:
    rows = {number: {"label": "a", "id": f"scan/{7 - number}"} for number in range(2)}
    place = write_fields(open_place(str(tmp_path / "source")), kind, rows)
    source = open_source(place, SourceOptions(key_column="id"))
    assert contents_of(source) == {"scan/7": some_bytes(0), "scan/6": some_bytes(1)}
    assert {image.columns for image in source.images} == {None}
    refused(place, UsageError, "--key-column name: no such column in", key_column="name")
    rows[1] = rows[0]
    again = write_fields(place if kind == "parquet" else place.parent, kind, rows)
    refused(again, UsageError, "scan/7 comes twice: in ", key_column="id")


@by_kind
def test_packs_contain_the_images_and_stay_when_a_file_is_added(kind: str, tmp_path: Path) -> None:
    require_packs_that_stay(open_place(str(tmp_path)), kind)


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_archives_on_hdfs_become_packs_there(kind: str, hdfs_root: Place) -> None:
    """Read at any offset, and in order; tests of Parquet files and of lists read some on HDFS, too."""
    require_packs_that_stay(hdfs_root, kind)


def require_packs_that_stay(root: Place, kind: str) -> None:
    packs = root / "data" / "raw" / "packs"

    def digests() -> dict[str, str]:
        return {info.base_name: (packs / info.base_name).sha256() for info in packs.children()}

    ingest_here(write(root / "source", kind, train=range(30)), root / "data", pack_size="2000")
    before = digests()
    assert len(before) > 4
    ingest_here(write(root / "source", kind, train=range(30), test=range(30, 34)), root / "data", pack_size="2000")
    after = digests()
    assert before.items() < after.items()
    found = {each.data: (each.name, each.split, each.columns) for each in packed_images(root / "data").values()}
    assert found == {
        some_bytes(number): (CLASSES[number % 3], "train" if number < 30 else "test", {"patient": f"p{number % 5}"})
        for number in range(34)
    }


@by_kind
def test_any_images_are_read_by_several_threads(kind: str, tmp_path: Path) -> None:
    source = opened(tmp_path, kind)
    expected = contents_of(source)
    assert sorted(expected.values()) == sorted(map(some_bytes, range(60)))
    assert [len(data) for data in expected.values()] == [image.size_bytes for image in source.images]
    chance = random.Random(1)
    samples = [chance.sample(range(60), 30) for _ in range(8)] + [range(60)] * 4 + [[], range(4, 5), range(0, 60, 7)]
    choices = [[source.images[number] for number in sorted(sample)] for sample in samples]
    with ThreadPoolExecutor(4) as pool:
        for images, found in zip(choices, pool.map(lambda images: list(source.read_all(images)), choices), strict=True):
            assert found == [expected[image.key] for image in images]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        *(("touched", kind) for kind in KINDS if kind not in LISTS),  # of a list's files only sizes are compared
        *(("longer", kind) for kind in KINDS if kind != "parquet"),  # which is no Parquet file then
        *(("gone", kind) for kind in KINDS),
    ],
)
def test_a_file_that_changed_since_it_was_listed_is_an_error(change: str, kind: str, tmp_path: Path) -> None:
    source = opened(tmp_path, kind)
    path = tmp_path / "source" / ("i/3.png" if kind in LISTS else f"train-0.{kind}")
    known = path.stat()
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + bytes(512 if change == "longer" else 0))
        os.utime(path, ns=(1, known.st_mtime_ns + (change == "touched")))
    with pytest.raises(DataError, match=f"{path.name} changed while it was read"):
        contents_of(source)


@pytest.mark.parametrize(
    "trials", [pytest.param(150, marks=pytest.mark.integration), pytest.param(10_000, marks=pytest.mark.chaos)]
)
@pytest.mark.parametrize("trial", [try_source, try_list])
def test_damaged_files_lose_no_image_silently(trial: Trial, trials: int) -> None:
    outcomes = run_trials(trial, trials)
    assert min(outcomes["good"], outcomes["DataError"]) > trials // 50

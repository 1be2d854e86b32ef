"""The splits of keys, contents and groups that slices record."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.partition.config import SPLIT_NAMES
from etl.slices.manifest import MEMORY_TABLES
from etl.slices.memory import KnownContents, KnownKeys, Memory, content_digests, digest_keys, removed_keys
from etl.storage.place import Place, open_place

DEALT = {f"image-{number:03d}": SPLIT_NAMES[number % 3] for number in range(50)}
GONE: dict[str, tuple[str | None, bool]] = {
    "gone-a": ("test", False),
    "gone-b": ("validation", False),
    "removed": ("train", True),
    "never-there": (None, True),
}
CHANGED = {"before-it-changed": "test", "image-001": "train"}  # a content in two splits, by the source
PATIENTS = {"x": "train", "y": "test"}


def sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    """The tables of slices: their own examples, and those of the slices before them."""
    tables: dict[str, tuple[pa.Schema, list[dict[str, Any]]]] = {
        "examples": (
            schemas.EXAMPLES,
            [{"key": key, "split": split, "sha256": sha256(key)} for key, split in DEALT.items()],
        ),
        "departed": (
            schemas.DEPARTED,
            [{"key": key, "split": split, "removed": removed} for key, (split, removed) in GONE.items()],
        ),
        "contents": (
            schemas.CONTENTS,
            [{"sha256": sha256(name), "split": split} for name, split in CHANGED.items()],
        ),
        "groups": (schemas.GROUPS, [{"group": group, "split": split} for group, split in PATIENTS.items()]),
    }
    for name, (schema, rows) in tables.items():
        table = parquet_tables.table_of(schema, rows)
        (tmp_path / f"{name}.parquet").write_bytes(parquet_tables.table_bytes(table))
    return open_place(str(tmp_path))


def facts_of(folder: Place) -> dict[str, Any]:
    files = {name: f"{name}.parquet" for name in MEMORY_TABLES}
    return {"tables": {name: {"file": file, "sha256": (folder / file).sha256()} for name, file in files.items()}}


def read(folder: Place) -> Memory:
    return Memory.read(folder, facts_of(folder))


def test_every_key_that_was_ever_dealt_keeps_its_split(folder: Place) -> None:
    known = read(folder).keys
    assert len(known) == len(DEALT) + len(GONE)
    expected: dict[str, str | None] = {**DEALT, **{key: split for key, (split, _) in GONE.items()}}
    numbers = known.find([*expected, "new"])
    assert numbers[-1] == -1
    splits = [None if split < 0 else SPLIT_NAMES[split] for split in known.splits[numbers[:-1]].tolist()]
    assert dict(zip(expected, splits, strict=True)) == expected


def test_every_content_has_the_splits_that_it_was_ever_in(folder: Place) -> None:
    known = read(folder).contents
    assert len(known) == len(DEALT) + 1
    names = [*DEALT, "before-it-changed", "new"]
    numbers = known.find(content_digests(pa.chunked_array([[sha256(name) for name in names]], pa.binary(32))))
    assert numbers[-1] == -1
    expected = [1 << SPLIT_NAMES.index(split) for split in DEALT.values()]
    expected[1] |= 1  # validation, and train
    assert known.splits[numbers[:-1]].tolist() == [*expected, 4]
    assert read(folder).groups == {"x": 0, "y": 2}


@pytest.mark.parametrize("name", MEMORY_TABLES)
def test_a_table_that_is_not_as_it_was_written_is_refused(name: str, folder: Place) -> None:
    """Rewritten without its first row, as Parquet that reads well."""
    facts = facts_of(folder)
    place = folder / f"{name}.parquet"
    Path(place.path).write_bytes(parquet_tables.table_bytes(parquet_tables.read_table(place).slice(1)))
    with pytest.raises(DataError, match=rf"{name}.parquet has another SHA-256 than its manifest records"):
        Memory.read(folder, facts)


def test_who_departs_is_remembered_with_those_that_departed_before(folder: Place) -> None:
    memory = read(folder)
    dealt = np.zeros(len(memory.keys), dtype=bool)
    dealt[memory.keys.find([*list(DEALT)[1:], "gone-a"])] = True  # the first left, and one came back
    rows = memory.departed(dealt).to_pylist()
    assert {row["key"]: row["split"] for row in rows} == {
        "image-000": DEALT["image-000"],
        **{key: split for key, (split, _) in GONE.items() if key != "gone-a"},
    }
    assert sorted(removed_keys(folder)) == ["never-there", "removed"]


def test_contents_that_depart_are_remembered_with_all_their_splits(folder: Place) -> None:
    memory = read(folder)
    all_splits = np.full(len(memory.contents), 7, dtype=np.uint8)
    assert memory.departed_contents(all_splits).to_pylist() == []
    assert {row["split"] for row in memory.departed_contents(all_splits - 4).to_pylist()} == {"test"}
    rows = memory.departed_contents(all_splits - 7).to_pylist()
    expected = {(sha256(key), split) for key, split in (*DEALT.items(), *CHANGED.items())}
    assert [(row["sha256"], row["split"]) for row in rows] == sorted(expected)


def test_digests_are_found_whatever_their_bytes() -> None:
    keys = [str(number) for number in range(20_000)]
    known = KnownKeys([pa.table({"key": keys[::2], "split": ["test"] * 10_000})])
    numbers = known.find(keys)
    assert (numbers[::2] >= 0).all()
    assert (numbers[1::2] == -1).all()
    assert len(set(numbers[::2].tolist())) == 10_000
    assert KnownKeys([]).find(["a"]).tolist() == [-1]
    assert KnownContents([]).find(digest_keys(["a"])).tolist() == [-1]


def test_digests_of_contents_come_from_any_part_of_a_column() -> None:
    contents = [sha256(str(number)) for number in range(10)]
    column = pa.chunked_array(
        [pa.array(contents[:4], pa.binary(32)), pa.array(contents[4:], pa.binary(32)).slice(2, 3)]
    )
    assert content_digests(column).tolist() == [each[:16].rstrip(b"\0") for each in (*contents[:4], *contents[6:9])]
    assert content_digests(pa.chunked_array([], pa.binary(32))).tolist() == []

"""The splits of keys, contents and groups that slices record."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.partition.config import SPLIT_NAMES
from etl.slices.history import TABLES_OF_HISTORY, SplitHistory, find, removed_keys
from etl.storage.place import Place, open_place

EXAMPLES = {f"image-{number:03d}": SPLIT_NAMES[number % 3] for number in range(50)}
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
            [{"key": key, "split": split, "sha256": sha256(key)} for key, split in EXAMPLES.items()],
        ),
        "departed": (
            schemas.DEPARTED,
            [{"key": key, "split": split, "removed": removed} for key, (split, removed) in GONE.items()],
        ),
        "contents": (schemas.CONTENTS, [{"sha256": sha256(name), "split": split} for name, split in CHANGED.items()]),
        "groups": (schemas.GROUPS, [{"group": group, "split": split} for group, split in PATIENTS.items()]),
    }
    for name, (schema, rows) in tables.items():
        table = parquet_tables.table_of(schema, rows)
        (tmp_path / f"{name}.parquet").write_bytes(parquet_tables.table_bytes(table))
    return open_place(str(tmp_path))


def facts_of(folder: Place) -> dict[str, Any]:
    files = {name: f"{name}.parquet" for name in TABLES_OF_HISTORY}
    return {"tables": {name: {"file": file, "sha256": (folder / file).sha256()} for name, file in files.items()}}


def read(folder: Place) -> SplitHistory:
    return SplitHistory.read(folder, facts_of(folder))


def keys_of(names: Iterable[str]) -> pa.ChunkedArray:
    return pa.chunked_array([list(names)], pa.string())


@pytest.mark.parametrize("name", TABLES_OF_HISTORY)
def test_a_table_that_is_not_as_it_was_written_is_refused(name: str, folder: Place) -> None:
    """Rewritten without its first row, as Parquet that reads well."""
    facts = facts_of(folder)
    place = folder / f"{name}.parquet"
    Path(place.path).write_bytes(parquet_tables.table_bytes(parquet_tables.read_table(place).slice(1)))
    with pytest.raises(DataError, match=rf"{name}.parquet has another SHA-256 than its manifest records"):
        SplitHistory.read(folder, facts)


def test_what_retires_is_recorded_with_what_retired_before(folder: Place) -> None:
    """The first key left, one came back, and one was removed that never was there."""
    history = read(folder)
    names = [*list(EXAMPLES)[1:], "gone-a"]
    places = find(keys_of(names), history.keys)
    contents = find(pa.chunked_array([[sha256(name) for name in names]], pa.binary(32)), history.contents)
    splits = np.array([SPLIT_NAMES.index(EXAMPLES.get(name, "test")) for name in names], dtype=np.int8)
    removed = history.removed | {"image-000", "unknown"}
    tables = history.retired_tables(places, contents, splits, removed=removed, groups={"y": 2, "x": 0})
    assert {row["key"]: (row["split"], row["removed"]) for row in tables["departed"].to_pylist()} == {
        "image-000": ("train", True),
        **{key: facts for key, facts in GONE.items() if key != "gone-a"},
        "unknown": (None, True),
    }
    left = {(sha256("image-000"), "train"), (sha256("image-001"), "train"), (sha256("before-it-changed"), "test")}
    assert [(row["sha256"], row["split"]) for row in tables["contents"].to_pylist()] == sorted(left)
    assert tables["groups"].to_pylist() == [{"group": "x", "split": "train"}, {"group": "y", "split": "test"}]
    assert sorted(removed_keys(folder)) == ["never-there", "removed"]
    for table, schema in zip(tables.values(), (schemas.DEPARTED, schemas.CONTENTS, schemas.GROUPS), strict=True):
        assert table.schema == schema

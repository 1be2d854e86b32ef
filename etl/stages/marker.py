"""Markers, and generations: how a finished stage takes other input without being rebuilt.

The stage's marker and the table beside it name its files, which never change. The table has one *entry*, a row, for
each pack or part; the marker has its file, its rows and its SHA-256, and stays small however many there are. It is
named by its SHA-256, published before the marker, and never changes: generations may share one.

A renewal adds files, and its marker replaces the one before, which is kept byte for byte under ``generations/``, named
by its fingerprint: what was made from it still finds it.
"""

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place
from etl.values import shorten

TABLES_FOLDER = "tables"
BATCH_ROWS = 4096  # that are Python objects at once

Entry = Mapping[str, Any]
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
MAX_SHOWN = 200  # characters of a value in a message


class Entries:
    """The entries of a generation, each as an object of JSON: SHA-256 in hexadecimal, without what is null.

    In memory is the compressed table; each iteration decodes it, a batch at a time.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._rows: int = self._open().metadata.num_rows

    def _open(self) -> pq.ParquetFile:
        return pq.ParquetFile(pa.BufferReader(self._data))

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._open().iter_batches(BATCH_ROWS):
            yield from to_json(batch.to_struct_array())

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._open().schema_arrow

    def column(self, name: str) -> Iterator[Any]:
        """One member of each entry, None if it is null. Nothing else of the table is decoded."""
        for batch in self._open().iter_batches(BATCH_ROWS, columns=[name]):
            yield from to_json(batch[name])


@dataclass(frozen=True)
class EntryTable:
    """The entries of a kind of stage: ``name`` is the field of its marker that names their table, of this ``schema``.

    ``files`` gives the files of an entry, as paths below the stage's folder.
    """

    name: str
    schema: pa.Schema
    files: Callable[[Entry], Iterable[str]]

    def publish(self, folder: Place, staging: Place, entries: Iterable[Entry]) -> dict[str, Any]:
        """Publish the table of these entries in the stage's ``folder``; returns the field of the marker."""
        builder = parquet_tables.TableBuilder(self.schema)
        for entry in entries:
            builder.add({field.name: _to_arrow(entry.get(field.name), field.type) for field in self.schema})
        return publish_named(folder, TABLES_FOLDER, staging, builder.table())

    def read(self, folder: Place, marker: Mapping[str, Any]) -> Entries:
        """The entries of this ``marker``. Raises DataError if their table is not there as it was written."""
        recorded = marker[self.name]
        place = folder / recorded["file"]
        try:
            data = place.read_bytes()
        except FileNotFoundError:
            raise DataError(f"{place} is missing; put it back, or run again with --overwrite") from None
        if hashlib.sha256(data).hexdigest() != recorded["sha256"]:
            raise DataError(f"{place} was edited or damaged (SHA-256); put it back, or run again with --overwrite")
        try:
            entries = Entries(data)
        except pa.ArrowException as error:
            raise DataError(f"{place} is damaged: {str(error).splitlines()[0]}") from None
        if entries.schema != self.schema or len(entries) != recorded["rows"]:
            raise DataError(f"{place} has other columns or rows than the marker records; run again with --overwrite")
        return entries


def publish_named(
    folder: Place, below: str, staging: Place, table: pa.Table, digits: int | None = None
) -> dict[str, Any]:
    """Publish a table in the folder ``below`` a stage's, named by so many digits of its SHA-256 (None: all).

    Returns what a marker records of it.
    """
    data = parquet_tables.table_bytes(table)
    sha256 = fingerprint_of(data)
    file = f"{below}/{sha256[:digits]}.parquet"
    publish_bytes(folder / file, staging, data)
    return {"file": file, "rows": table.num_rows, "sha256": sha256}


def _to_arrow(value: Any, kind: pa.DataType) -> Any:
    """A value of JSON as `pa.array` takes it for this type."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _to_arrow(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(key, _to_arrow(each, kind.item_type)) for key, each in value.items()]
    return bytes.fromhex(value) if pa.types.is_fixed_size_binary(kind) else value


def to_json(column: pa.Array) -> list[Any]:
    """The values of an array as those of JSON, without members of objects that are null.

    A tenth of the time that `pa.Array.to_pylist` takes for nested types.
    """
    kind = column.type
    values: list[Any]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*map(to_json, column.flatten()), strict=True)
        values = [{name: each for name, each in zip(names, row, strict=True) if each is not None} for row in rows]
    elif pa.types.is_map(kind):
        keys, items = _by_row(column, column.keys), _by_row(column, column.items)
        values = [dict(zip(*each, strict=True)) for each in zip(keys, items, strict=True)]
    elif pa.types.is_list(kind):
        values = list(_by_row(column, column.values))
    elif pa.types.is_fixed_size_binary(kind):
        return [value if value is None else value.hex() for value in column.to_pylist()]
    else:
        return column.to_pylist() if column.null_count or not pa.types.is_integer(kind) else column.to_numpy().tolist()
    if column.null_count:
        values = [each if valid else None for each, valid in zip(values, column.is_valid().to_pylist(), strict=True)]
    return values


def _by_row(column: pa.Array, children: pa.Array) -> Iterator[Any]:
    """The ``children`` of a list or map that belong to each of its rows; counts, which may be many, as an array."""
    first, *_ = bounds = column.offsets.to_numpy().tolist()
    own = children.slice(first, bounds[-1] - first)
    values = array("I", own.to_numpy().tobytes()) if own.type == pa.uint32() else to_json(own)
    return (values[start - first : stop - first] for start, stop in pairwise(bounds))


@dataclass(frozen=True)
class Generation:
    """A marker of the stage in ``folder``, and its fingerprint: the SHA-256 of its bytes, in hexadecimal."""

    marker: dict[str, Any]
    fingerprint: str
    folder: Place
    table: EntryTable | None = None

    @cached_property
    def entries(self) -> Entries:
        """The packs of a generation of ``raw``, or the parts of one of ``normalized``.

        Raises DataError if their table is not there as it was written.
        """
        assert self.table is not None, f"{self.folder} has no packs or parts"
        return self.table.read(self.folder, self.marker)


def fingerprint_of(data: bytes) -> str:
    """SHA-256 of a marker's bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def difference(marker: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """How a marker differs from this identity, for people; empty if it does not."""
    for key, ours in identity.items():
        theirs = marker.get(key)
        if theirs == ours:
            continue
        if key == "config" and isinstance(theirs, dict):
            there, asked = _flat(theirs), _flat(ours)
            return ", ".join(
                f"{name} {shorten(str(there.get(name)), MAX_SHOWN)} there,"
                f" {shorten(str(asked.get(name)), MAX_SHOWN)} asked"
                for name in asked | there
                if there.get(name) != asked.get(name)
            )
        return "made from other input" if key == "input" else f"{key} {theirs!r} there, {ours!r} asked"
    return ""


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without nested ones: the member ``b`` of ``a`` is called "a b"."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value.items() if isinstance(value, Mapping) else ()
        flat |= {f"{name} {each}": what for each, what in inner} or {name: value}
    return flat

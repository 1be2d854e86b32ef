"""Write and read the Parquet tables that stages leave beside their files; their columns are in `etl.formats.schemas`.

Small facts about a file (counts, SHA-256) travel in the schema's metadata of the table beside it, so that a stage's
last step reads footers only.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from etl.errors import DataError, EnvironmentFailure
from etl.storage.atomic import OutputFile, publish_bytes, publish_stream
from etl.storage.place import Place

GROUP_ROWS = 1 << 16
Table = pa.Table  # for the jobs, which import no pyarrow

_FACTS = b"ringslice"


def write_table(final: Place, staging: Place, table: pa.Table, facts: Mapping[str, Any] | None = None) -> OutputFile:
    """Publish ``table`` as a Parquet file, with ``facts`` (JSON) in its schema's metadata."""
    return publish_bytes(final, staging, table_bytes(table, facts))


def table_bytes(table: pa.Table, facts: Mapping[str, Any] | None = None) -> bytes:
    """``table`` as the bytes of a Parquet file, with ``facts`` (JSON) in its schema's metadata."""
    if facts is not None:
        table = table.replace_schema_metadata({_FACTS: json.dumps(facts, allow_nan=False)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return cast(bytes, sink.getvalue().to_pybytes())


def write_tables(final: Place, staging: Place, schema: pa.Schema, parts: Iterable[pa.Table]) -> tuple[OutputFile, int]:
    """Publish ``parts`` as one Parquet file of row groups of `GROUP_ROWS`; returns it and the number of its rows."""
    rows = 0
    with (
        publish_stream(final, staging) as output,
        pq.ParquetWriter(pa.PythonFile(output, mode="w"), schema, compression="zstd") as writer,
    ):
        for group in _regrouped(parts):
            writer.write_table(group.replace_schema_metadata(None), row_group_size=max(1, group.num_rows))
            rows += group.num_rows
    return output, rows


def _regrouped(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of ``parts`` in tables of `GROUP_ROWS`, the last one shorter."""
    waiting: list[pa.Table] = []
    number = 0
    for part in parts:
        waiting.append(part)
        number += part.num_rows
        while number >= GROUP_ROWS:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, GROUP_ROWS)
            waiting, number = [whole.slice(GROUP_ROWS)], number - GROUP_ROWS
    if number:
        yield pa.concat_tables(waiting)


def table_of(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert rows to a table. Raises pyarrow.ArrowException for a value that does not fit the schema."""
    return pa.Table.from_pylist(cast(list[Any], rows), schema=schema)


class TableBuilder:
    """Collects rows into a table; what waits as Python objects is bounded, so that many rows take little memory."""

    WAITING_ROWS = 4096

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._waiting: list[Mapping[str, Any]] = []
        self._tables: list[pa.Table] = []
        self.rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        self._waiting.append(row)
        self.rows += 1
        if len(self._waiting) == self.WAITING_ROWS:
            self._convert()

    def table(self) -> pa.Table:
        """All rows so far, in the order they came."""
        self._convert()
        return pa.concat_tables(self._tables).combine_chunks()

    def _convert(self) -> None:
        self._tables.append(table_of(self._schema, self._waiting))
        self._waiting = []


def read_table(place: Place, columns: list[str] | None = None, remedy: str | None = None) -> pa.Table:
    """The table in this Parquet file. Raises DataError if it cannot be read as one, or lacks one of ``columns``.

    With the ``remedy`` for a file that a marker names, a missing one is a DataError, too, else FileNotFoundError.
    """
    with _open_recorded(place, remedy) as source:
        file = pq.ParquetFile(source, pre_buffer=True)  # takes a third of the processor time of `pq.read_table`
        table = file.read(columns, use_threads=file.num_row_groups > 1)
        _require_columns(columns, table.column_names)
        return table.select(columns) if columns else table


def _require_columns(columns: Sequence[str] | None, there: Sequence[str]) -> None:
    if missing := set(columns or ()) - set(there):
        raise KeyError(f"no column {', '.join(sorted(missing))}")


def iterate_groups(place: Place, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The row groups of a table, one by one. Raises DataError if it cannot be read as one."""
    with open_checked(place) as source:
        file = pq.ParquetFile(source)
        _require_columns(columns, file.schema_arrow.names)
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns)


def read_range(place: Place, start: int, stop: int, columns: list[str] | None = None) -> pa.Table:
    """Rows ``start`` to before ``stop`` of a table; only the row groups that contain them are read.

    Raises DataError if it cannot be read, or has fewer rows.
    """
    with open_checked(place) as source:
        file = pq.ParquetFile(source)
        rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        bounds = list(accumulate(rows, initial=0))
        if bounds[-1] < stop:
            raise ValueError(f"{bounds[-1]} rows where there should be {stop} or more")
        if start >= stop:
            return file.schema_arrow.empty_table().select(columns or file.schema_arrow.names)
        groups = range(bisect_right(bounds, start) - 1, bisect_left(bounds, stop))
        return file.read_row_groups(groups, columns).slice(start - bounds[groups[0]], stop - start)


def read_facts(place: Place) -> dict[str, Any]:
    """What `write_table` was given as facts. Raises DataError if there is nothing of that kind."""
    with open_checked(place) as source:
        return _facts_in(pq.read_schema(source))


def facts_of(table: pa.Table) -> dict[str, Any]:
    """What `write_table` was given as facts of a table that was read whole; empty where it has none."""
    try:
        facts = _facts_in(table.schema)
    except (ValueError, KeyError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _facts_in(schema: pa.Schema) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads((schema.metadata or {})[_FACTS]))


@contextmanager
def open_checked(place: Place, fault: str = "is damaged", remedy: str = "") -> Iterator[pa.NativeFile]:
    """The file, open. Errors of Arrow in this context become a DataError with the ``fault`` and the ``remedy``."""
    with place.filesystem.explain_errors(place.path), place.open_input() as source:
        try:
            yield source
        except MemoryError as error:  # Arrow's is an ArrowException, too
            raise MemoryError(str(error)) from None
        except (pa.ArrowException, ValueError, KeyError, OverflowError, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # the storage's own failure; a damaged file's has no number
                raise
            if "Failed to launch worker thread" in str(error):
                raise EnvironmentFailure(
                    f"{place}: no thread can be started to read it (raise ulimit -v, -u)"
                ) from None
            what = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
            raise DataError(f"{place} {fault}: {what}{remedy}") from None


@contextmanager
def _open_recorded(place: Place, remedy: str | None) -> Iterator[pa.NativeFile]:
    """As `open_checked`; with the ``remedy`` for a file that a marker names, a missing one is a DataError, too."""
    try:
        with open_checked(place, remedy=f"; {remedy}" if remedy else "") as source:
            yield source
    except FileNotFoundError:
        if remedy is None:
            raise
        raise DataError(f"{place} is missing; {remedy}") from None

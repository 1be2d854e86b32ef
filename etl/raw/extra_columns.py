"""Further columns of images from the user's table: CSV or Parquet, with a column ``key`` and any others."""

import dataclasses
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.sources.base import Columns, SourceImage, reject_duplicates
from etl.sources.fields import known_columns
from etl.sources.file_list import csv_rows
from etl.sources.names import PARQUET_NAMES
from etl.storage.place import Place

KEY = "key"

Joined = tuple[list[SourceImage], dict[str, int]]


def read_columns(place: Place) -> pa.Table:
    """The table with all columns as text; a cell without a value is null.

    Raises UsageError if it has no column ``key``, no other, or a key twice; DataError if it cannot be read as text.
    """
    if place.info().type != fs.FileType.File:
        raise UsageError(f"--columns {place}: no such file; give a CSV or Parquet table with a column 'key'")
    table = _read(place)
    names = table.column_names
    if KEY not in names or len(names) < 2 or len(set(names)) < len(names):
        found = ", ".join(map(repr, names))
        raise UsageError(f"--columns {place} has the columns {found}; it needs 'key' and others, each once")
    keys = table[KEY].combine_chunks()
    if keys.null_count:
        raise UsageError(
            f"--columns {place} has {keys.null_count} rows without a key; give each row the key of its image"
        )
    reject_duplicates(keys.to_pylist(), lambda row: f"row {row + 1} of --columns {place}")
    return table


def _read(place: Place) -> pa.Table:
    if PARQUET_NAMES.search(place.name):
        table = parquet_tables.read_table(place)
        try:
            table = table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
            table.validate(full=True)  # Arrow does not check that text is UTF-8 as it reads
        except pa.ArrowException as error:
            what = str(error).splitlines()[0]
            raise DataError(f"--columns {place}: a column is neither text nor numbers ({what}); leave it out") from None
        return table
    rows = [row for _, row in csv_rows(place)]
    if not rows:
        raise DataError(f"--columns {place} has no rows; give a table with the columns of the images")
    return pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in rows[0]})


def join_columns(images: Sequence[SourceImage], table: pa.Table) -> Joined:
    """The images with the columns of their rows and their own, and the numbers of images and rows without the other.

    If both have a column, the table's cell is taken if it has a value.
    """
    rows = pc.index_in(pa.array([image.key for image in images], pa.string()), value_set=table[KEY])
    names = sorted(name for name in table.column_names if name != KEY)
    values = [pc.take(table[name].combine_chunks(), rows).to_pylist() for name in names]
    joined = [
        dataclasses.replace(image, columns=_joined(image.columns, known_columns(names, cells)))
        for image, cells in zip(images, zip(*values, strict=True), strict=True)
    ]
    unknown = rows.null_count
    facts = {"rows": table.num_rows, "rows_without_image": table.num_rows - (len(images) - unknown)}
    return joined, facts | {"images_without_row": unknown}


def _joined(own: Columns | None, others: Columns | None) -> Columns | None:
    return tuple(sorted((dict(own or ()) | dict(others or ())).items())) or None

"""Further columns of images from the user's table: CSV or Parquet, with a column ``key`` and any others."""

import dataclasses
import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, fs

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.sources import SourceImage
from etl.sources.base import Columns, reject_duplicates
from etl.sources.fields import known_columns
from etl.sources.names import PARQUET_NAMES
from etl.storage.place import Place

KEY = "key"

Joined = tuple[list[SourceImage], dict[str, int]]


def read_columns(place: Place) -> pa.Table:
    """The table with all columns as text; a cell without a value is null.

    Raises UsageError if it has no column ``key``, no other, a key twice, or columns that are neither text nor numbers;
    DataError if it cannot be read.
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
        for number, field in enumerate(table.schema):
            try:
                table = table.set_column(number, field.name, table[field.name].cast(pa.string()))
            except pa.ArrowException:
                raise UsageError(
                    f"--columns {place}: column {field.name!r} is {field.type}, neither text nor numbers; leave it out"
                ) from None
        try:
            table.validate(full=True)  # text in UTF-8, which Arrow does not check as it reads
        except pa.ArrowException as error:
            raise DataError(f"--columns {place} is damaged: {str(error).splitlines()[0]}") from None
        return table
    data = place.read_bytes()
    try:
        names = csv.open_csv(io.BytesIO(data)).schema.names
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        return csv.read_csv(io.BytesIO(data), convert_options=convert)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"--columns {place} is not a CSV table: {str(error).splitlines()[0]}") from None


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

"""Open Parquet files with images: find the columns by the user's options, else by name and type, and read them."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.errors import UsageError
from etl.formats import parquet_tables
from etl.sources.base import SourceOptions
from etl.sources.fields import checked_label, find_columns, one_line, parse_object
from etl.storage.place import READ_BUFFER_BYTES, Place

_BATCH_BYTES = 1 << 20  # about what the images of one batch have
_MAX_BATCH_ROWS = 1024

Batches = Iterator[tuple[int, pa.RecordBatch]]


@contextmanager
def open_parquet(file: Place) -> Iterator[pq.ParquetFile]:
    """The file, open. Errors of Arrow in this context become a DataError that names the file."""
    remedy = "; it is damaged, cut off or of another format: fetch or write it again"
    with parquet_tables.open_checked(file, "cannot be read as a Parquet file", remedy) as stream:
        yield pq.ParquetFile(stream, buffer_size=READ_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)


def read_batches(parquet: pq.ParquetFile, leaves: Sequence[str], rows: Sequence[int] | None = None) -> Batches:
    """Yield these columns in small batches, each with the number of its first row.

    Row groups without one of the ascending ``rows`` are not read. Raises ValueError if a row group does not have as
    many rows as the footer records, by which rows are numbered.
    """
    end = 0
    for group in range(parquet.num_row_groups):
        facts = parquet.metadata.row_group(group)
        first, end = end, end + facts.num_rows
        if rows is not None and bisect_left(rows, first) == bisect_left(rows, end):
            continue
        batch_rows = max(1, _BATCH_BYTES * facts.num_rows // max(1, facts.total_byte_size))
        for batch in parquet.iter_batches(min(batch_rows, _MAX_BATCH_ROWS), [group], list(leaves), use_threads=False):
            yield first, batch
            first += batch.num_rows
        if first != end:
            raise ValueError(f"row group {group} does not have the number of rows that the footer records")


def bytes_in(column: pa.Array) -> pa.Array:
    """A column of bytes, or the one field of a column of structs of which no other was read."""
    return pc.struct_field(column, 0) if pa.types.is_struct(column.type) else column


def read_cells(file: Place, leaf: str, rows: Sequence[int]) -> Iterator[bytes | None]:
    """The cells of these ascending ``rows`` of a column of bytes, whose path is ``leaf``; None where one is null."""
    position = 0
    with open_parquet(file) as parquet:
        for first, batch in read_batches(parquet, [leaf], rows):
            cells = bytes_in(batch.column(0))
            while position < len(rows) and rows[position] < first + len(cells):
                yield cells[rows[position] - first].as_py()
                position += 1
            if position == len(rows):
                return


_BYTES = "bytes"
_OTHER_LABEL_COLUMNS = ("labels",)

Test = Callable[[pa.DataType], bool]  # of Arrow's, for a kind of types
_BINARY: tuple[Test, ...] = (pa.types.is_binary, pa.types.is_large_binary)
_TEXT: tuple[Test, ...] = (pa.types.is_string, pa.types.is_large_string)
_KEY = (*_TEXT, pa.types.is_integer)
_LABEL = (*_KEY, pa.types.is_boolean)
_TIMES = (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp)
_SCALAR = (*_LABEL, pa.types.is_floating, pa.types.is_decimal, *_TIMES)


@dataclass(frozen=True)
class Layout:
    """The columns of a file by their use; ``names`` are the classes of the numbers in ``label``.

    ``image_leaf`` is the path of the column of bytes, ``others`` further columns of scalars, ``left_out`` the rest.
    """

    image: str
    image_leaf: str
    label: str
    split: str | None
    key: str | None
    others: tuple[str, ...]
    left_out: tuple[str, ...]
    names: tuple[str, ...] | None

    @property
    def leaves(self) -> list[str]:
        """The paths of all columns that are read."""
        return [self.image_leaf, self.label, *filter(None, (self.split, self.key)), *self.others]


def layout_of(schema: pa.Schema, options: SourceOptions, file: Place) -> Layout:
    """Find the columns by the user's options, else by name and type.

    Raises UsageError if a column is missing, has another type, or is not the only one that can be that of images.
    """
    if twice := [name for number, name in enumerate(schema.names) if name in schema.names[:number]]:
        raise UsageError(f"{file} has the column {one_line(twice[0])} more than once; write it with other names")
    image = _image_column(schema, options, file)
    label, split, key = find_columns(schema.names, options, str(file), _OTHER_LABEL_COLUMNS)
    for option, name, tests, what in (
        ("--label-column", label, _LABEL, "labels are integers, text or booleans"),
        ("--split-column", split, _TEXT, "splits are text"),
        ("--key-column", key, _KEY, "keys are text or integers"),
    ):
        if name is not None and not _is_any(kind := schema.field(name).type, tests):
            raise UsageError(
                f"the column {one_line(name)} of {file} is {one_line(kind)}; {what}: name their column by {option}"
            )
    rest = [field for field in schema if field.name not in (image.name, label, split, key)]
    return Layout(
        image=image.name,
        image_leaf=f"{image.name}.{_BYTES}" if pa.types.is_struct(image.type) else image.name,
        label=label,
        split=split,
        key=key,
        others=tuple(sorted(field.name for field in rest if _is_any(field.type, _SCALAR))),
        left_out=tuple(field.name for field in rest if not _is_any(field.type, _SCALAR)),
        names=class_names(schema, label) if pa.types.is_integer(schema.field(label).type) else None,
    )


def _image_column(schema: pa.Schema, options: SourceOptions, file: Place) -> pa.Field:
    asked = options.image_column
    found = [field for field in schema if _holds_bytes(field.type) and asked in (None, field.name)]
    if len(found) == 1:
        return found[0]
    if found:
        names = one_line(", ".join(field.name for field in found))
        raise UsageError(f"{file} has several columns with bytes, {names}: choose the images' by --image-column")
    shown = one_line(", ".join(f"{field.name} ({field.type})" for field in schema))
    what = f"column {asked} with image bytes (--image-column)" if asked else "column with image bytes"
    raise UsageError(
        f"{file} has no {what}; its columns are {shown}: images are binary, or the binary 'bytes' of a struct"
    )


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        number = kind.get_field_index(_BYTES)
        return number >= 0 and _is_any(kind.field(number).type, _BINARY)
    return _is_any(kind, _BINARY)


def _is_any(kind: pa.DataType, tests: Sequence[Test]) -> bool:
    """True if one of the ``tests`` holds for a type; a dictionary of text is text."""
    is_coded_text = pa.types.is_dictionary(kind) and _is_any(kind.value_type, _TEXT)
    return any(test(pa.string() if is_coded_text else kind) for test in tests)


def class_names(schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """The names of the classes that Hugging Face `datasets` keeps for a column of numbers; None if there are none.

    The schema has them in JSON: {"info": {"features": {COLUMN: {"_type": "ClassLabel", "names": [...]}}}}. Raises
    ValueError if they are damaged, UsageError if a name cannot be that of a class.
    """
    found: Any = parse_object((schema.metadata or {}).get(b"huggingface", b"{}"))
    for name in ("info", "features", column):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict) or found.get("_type") != "ClassLabel" or not found.get("names"):
        return None
    names = found["names"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("the names of classes in its metadata are not a list of text")
    if len(set(names)) < len(names):
        raise ValueError(f"its metadata have a class of the column {column} more than once")
    return tuple(checked_label(name, f"the metadata of the column {column}") for name in names)

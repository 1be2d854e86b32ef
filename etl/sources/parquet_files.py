"""Parquet files, open, and their rows in small batches, read forward.

Arrow holds one page of each column at a time, so memory goes by the pages that the writer made, not by row groups: no
column is read ahead or whole. Format: https://parquet.apache.org/docs/file-format/
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from etl.errors import DataError
from etl.sources.fields import one_line
from etl.storage import READ_BUFFER_BYTES, Place

_BATCH_BYTES = 1 << 20  # about what the images of one batch have
_MOST_BATCH_ROWS = 1024

Batches = Iterator[tuple[int, pa.RecordBatch]]


@contextmanager
def open_parquet(file: Place) -> Iterator[pq.ParquetFile]:
    """The file, open. Within this context, what Arrow cannot read is a DataError that names the file."""
    with file.filesystem.explaining(file.path), file.open_input() as stream:
        try:
            yield pq.ParquetFile(
                stream, buffer_size=READ_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
            )
        except (pa.ArrowException, ValueError, KeyError, OverflowError, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # the storage's own failure; a damaged file's has no number
                raise
            what = one_line(error).rstrip(".") or type(error).__name__
            raise DataError(
                f"{file} cannot be read as a Parquet file: {what}; it is damaged, cut off or of another format:"
                " fetch or write it again"
            ) from None


def read_batches(
    parquet: pq.ParquetFile, leaves: Sequence[str], is_wanted: Callable[[int, int], bool] = lambda first, end: True
) -> Batches:
    """These columns, in small batches with the number of the first row of each, from the first row to the last.

    Row groups, and rests of them, of which ``is_wanted(first row, row after the last)`` says no are not read. Raises
    ValueError where the file has other numbers of rows than it says.
    """
    first = 0
    for group in range(parquet.num_row_groups):
        told = parquet.metadata.row_group(group)
        end = first + told.num_rows
        if told.num_rows > 0 and is_wanted(first, end):
            row_bytes = max(1, told.total_byte_size // told.num_rows)
            batch_rows = min(max(1, _BATCH_BYTES // row_bytes), _MOST_BATCH_ROWS)
            for batch in parquet.iter_batches(batch_rows, [group], list(leaves), use_threads=False):
                yield first, batch
                first += batch.num_rows
                if not is_wanted(first, end):
                    break
            else:
                if first != end:
                    raise ValueError(f"row group {group} ends {end - first} rows early")
        first = end
    if first != parquet.metadata.num_rows:
        raise ValueError(f"it says that it has {parquet.metadata.num_rows} rows, its row groups {first}")


def bytes_in(column: pa.Array) -> pa.Array:
    """A column of bytes, or the one field of a column of structs of which no other was read."""
    return pc.struct_field(column, 0) if pa.types.is_struct(column.type) else column


def read_cells(file: Place, leaf: str, rows: Sequence[int]) -> Iterator[bytes | None]:
    """The cells of these ascending ``rows`` of a column of bytes, whose path is ``leaf``; None where one is null."""
    position = 0

    def holds_next(first: int, end: int) -> bool:
        return position < len(rows) and first <= rows[position] < end

    with open_parquet(file) as parquet:
        for first, batch in read_batches(parquet, [leaf], holds_next):
            cells = bytes_in(batch.column(0))
            while holds_next(first, first + len(cells)):
                position += 1  # before the cell is handed out, so that this one is not asked for again
                yield cells[rows[position - 1] - first].as_py()

"""Read the rows of a list: CSV (RFC 4180, the first line names the columns) or JSON Lines (https://jsonlines.org).

Both are UTF-8, with or without a byte order mark. Lines are counted from 1, as editors do.
"""

import csv
import io
from collections.abc import Iterator
from typing import Any

from pyarrow import NativeFile

from etl.errors import DataError
from etl.sources.fields import one_line, parse_object
from etl.storage.place import READ_BUFFER_BYTES, Place

NumberedRow = tuple[int, dict[str, Any]]  # the line that a row begins in, and its cells by column


def read_rows(place: Place) -> Iterator[NumberedRow]:
    """Yield the rows; those of CSV all have the same columns, with text in them.

    Raises DataError, which names the line, for a line that is not of the format.
    """
    parse = _csv_rows if place.name.lower().endswith(".csv") else _json_rows
    with place.filesystem.explaining(place.path), place.open_input() as stream:
        yield from parse(stream, place)


def _csv_rows(stream: NativeFile, place: Place) -> Iterator[NumberedRow]:
    rows = csv.reader(_text_lines(stream, place), strict=True)
    columns: list[str] = []
    number = 1
    try:
        for cells in rows:
            if cells and not columns:
                columns = cells
                if "" in columns or len(set(columns)) < len(columns):
                    raise ValueError(f"the header needs a name of its own for each column, not {', '.join(columns)}")
            elif cells and len(cells) != len(columns):
                raise ValueError(f"it has {len(cells)} cells, the header {len(columns)}")
            elif cells:
                yield number, {name: cell or None for name, cell in zip(columns, cells, strict=True)}
            number = rows.line_num + 1
    except csv.Error as error:
        raise _damaged(place, number, f"{error}: is a quote missing or one too many?") from None
    except ValueError as error:
        raise _damaged(place, number, error) from None


def _text_lines(stream: NativeFile, place: Place) -> Iterator[str]:
    """Decode the lines, each with its end. Raises DataError for a line that is not UTF-8."""
    for number, line in enumerate(io.BufferedReader(stream, READ_BUFFER_BYTES), 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _damaged(place, number, f"it is not UTF-8 ({error.reason} at byte {error.start})") from None


def _json_rows(stream: NativeFile, place: Place) -> Iterator[NumberedRow]:
    for number, line in enumerate(io.BufferedReader(stream, READ_BUFFER_BYTES), 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            try:
                row = parse_object(line)
            except ValueError as error:
                raise _damaged(place, number, error) from None
            yield number, row


def _damaged(place: Place, number: int, what: object) -> DataError:
    return DataError(f"line {number} of {place} cannot be read: {one_line(what)}; correct it")

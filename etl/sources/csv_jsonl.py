"""The rows of a list: CSV (RFC 4180, the first line names the columns) or JSON Lines (https://jsonlines.org).

Both are UTF-8, with or without a byte order mark. Lines are counted from 1, as editors do.
"""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, NoReturn

from pyarrow import NativeFile

from etl.errors import DataError
from etl.sources.fields import one_line
from etl.storage.place import READ_BUFFER_BYTES, Place

_MOST_LINE_BYTES = 1 << 20
_MARK = b"\xef\xbb\xbf"

# the number of the line that a row begins in, and its cells by column, None where one is empty
NumberedRow = tuple[int, dict[str, Any]]


def read_rows(place: Place) -> Iterator[NumberedRow]:
    """The rows, one after the other; those of CSV all have the same columns, with text in them.

    Raises DataError, which names the line, for what is not of the format.
    """
    parse = _csv_rows if _is_csv(place) else _json_rows
    with place.filesystem.explaining(place.path), place.open_input() as stream:
        yield from parse(_lines(stream, place), place)


def _is_csv(place: Place) -> bool:
    return place.name.lower().endswith(".csv")


def _lines(stream: NativeFile, place: Place) -> Iterator[str]:
    """The lines with their ends, as text."""
    with io.BufferedReader(stream, READ_BUFFER_BYTES) as source:
        number = 0
        while line := source.readline(_MOST_LINE_BYTES + 1):
            number += 1
            if len(line) > _MOST_LINE_BYTES:
                raise _damaged(place, number, "it is longer than 1 MiB")
            try:
                yield (line.removeprefix(_MARK) if number == 1 else line).decode()
            except UnicodeDecodeError as error:
                raise _damaged(place, number, f"it is not UTF-8 ({error.reason} at byte {error.start})") from None


def _csv_rows(lines: Iterator[str], place: Place) -> Iterator[NumberedRow]:
    rows = csv.reader(lines, strict=True)
    columns: list[str] | None = None
    while True:
        number = rows.line_num + 1
        try:
            cells = next(rows, None)
        except csv.Error as error:
            raise _damaged(place, number, f"{error}: is a quote missing or one too many?") from None
        if cells is None:
            return
        if not cells:  # an empty line
            continue
        if columns is None:
            columns = _header(cells, place, number)
        elif len(cells) != len(columns):
            raise _damaged(place, number, f"it has {len(cells)} cells, the header {len(columns)}")
        else:
            yield number, {name: cell or None for name, cell in zip(columns, cells, strict=True)}


def _header(cells: list[str], place: Place, number: int) -> list[str]:
    if "" in cells or len(set(cells)) < len(cells):
        raise _damaged(place, number, f"the header needs a name of its own for each column, not {', '.join(cells)}")
    return cells


def _json_rows(lines: Iterator[str], place: Place) -> Iterator[NumberedRow]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _DECODER.decode(line.strip())
            if "\\u" in line:
                json.dumps(row, ensure_ascii=False).encode()  # fails for half of a surrogate pair, which is no text
        except (ValueError, RecursionError) as error:
            raise _damaged(place, number, f"it is not JSON ({error})") from None
        if not isinstance(row, dict):
            raise _damaged(place, number, "it is no JSON object, {...}")
        yield number, row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a field more than once")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse)


def _damaged(place: Place, number: int, what: str) -> DataError:
    form = "CSV" if _is_csv(place) else "JSON Lines"
    return DataError(f"line {number} of {place} is no {form}: {one_line(what)}; correct it")

"""Compare what is recorded with what it should be, and describe where they differ."""

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

_SEQUENCES = (list, tuple, array)


def differences(expected: Any, recorded: Any, path: str = "") -> Iterator[str]:
    """Where the JSON value ``recorded`` is not ``expected``: a line for each path."""
    if isinstance(expected, Mapping) and isinstance(recorded, Mapping):
        for name in dict.fromkeys([*expected, *recorded]):
            where = f"{path}.{name}" if path else name
            if name not in recorded or name not in expected:
                yield f"{where} {'is missing' if name in expected else 'should not be there'}"
            else:
                yield from differences(expected[name], recorded[name], where)
    elif isinstance(expected, _SEQUENCES) and isinstance(recorded, _SEQUENCES) and len(expected) == len(recorded):
        for number, pair in enumerate(zip(expected, recorded, strict=True)):
            yield from differences(*pair, f"{path}.{number}")
    elif expected != recorded or isinstance(expected, bool) != isinstance(recorded, bool):
        yield f"{path or 'it'} is {_short(recorded)}, not {_short(expected)}"


def _short(value: Any) -> str:
    text = repr(list(value) if isinstance(value, array) else value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def table_difference(expected: pa.Table, recorded: pa.Table) -> str | None:
    """The first row in which ``recorded`` is not ``expected``, None if it is.

    A row is named by its key, if both tables have the same one there.
    """
    if expected.equals(recorded):
        return None
    if expected.column_names != recorded.column_names:
        return f"it has the columns {_short(recorded.column_names)}, not {_short(expected.column_names)}"
    rows = min(expected.num_rows, recorded.num_rows)
    for name in expected.column_names:
        pairs = zip(expected[name].to_pylist(), recorded[name].to_pylist(), strict=False)
        for row, (due, value) in enumerate(pairs):
            if due != value:
                where = f"{expected['key'][row]}: " if name != "key" and "key" in expected.column_names else ""
                return f"row {row}: {where}{name} is {_short(value)}, not {_short(due)}"
    return f"there are {recorded.num_rows} rows, not {expected.num_rows}; the first {rows} are as they should be"

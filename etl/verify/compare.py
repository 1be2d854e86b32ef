"""Compare what is recorded with what it should be, and describe the first difference."""

import pyarrow as pa


def table_difference(expected: pa.Table, recorded: pa.Table) -> str | None:
    """The first row in which ``recorded`` is not ``expected``, which has the same columns; None if it is."""
    if expected.equals(recorded):
        return None
    if expected.num_rows != recorded.num_rows:
        return f"there are {recorded.num_rows} rows, not {expected.num_rows}"
    for name in expected.column_names:
        pairs = zip(expected[name].to_pylist(), recorded[name].to_pylist(), strict=True)
        for row, (due, value) in enumerate(pairs):
            if due != value:
                return f"row {row}: {name} is {value}, not {due}"
    return "its columns have other types"

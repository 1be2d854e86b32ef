"""Whether slices are balanced, by the counts of their classes."""

from typing import Any

import pytest

from etl.formats import parquet_tables, schemas
from etl.verify.check_markers import balance_faults

TOTAL = "slices of train have 2 to 4 examples"


def imbalances(counts: list[list[int]], partition: str) -> list[str]:
    """The faults of training slices with so many examples of each class; a class without any has no row."""
    names = [f"train-{number}" for number in range(len(counts))]
    slices = [{"name": name, "records": sum(own)} for name, own in zip(names, counts, strict=True)]
    manifest: dict[str, Any] = {
        "classes": [f"class {label}" for label in range(len(counts[0]))],
        "config": {"partition": partition},
        "splits": {"train": {"slices": slices}},
    }
    rows = [
        {"slice": name, "split": "train", "label": label, "records": records}
        for name, own in zip(names, counts, strict=True)
        for label, records in enumerate(own)
        if records
    ]
    table = parquet_tables.table_of(schemas.CLASS_COUNTS, rows)
    found = balance_faults(manifest, [table.slice(0, 1), table.slice(1)])
    return [each.line.removeprefix("the slices are not balanced: ") for each in found]


@pytest.mark.parametrize(
    ("counts", "faults"),
    [
        ([[2, 1], [1, 2], [2, 2]], []),
        ([[1, 0], [0, 1]], []),
        ([[3, 1], [1, 1]], [TOTAL, "slices of train have 1 to 3 examples of class class 0"]),
        ([[3, 1], [1, 3]], [f"slices of train have 1 to 3 examples of class class {label}" for label in (0, 1)]),
        ([[2, 1], [0, 2], [2, 1]], ["slices of train have 0 to 2 examples of class class 0"]),
    ],
)
def test_slices_that_differ_by_more_than_one_are_found(counts: list[list[int]], faults: list[str]) -> None:
    assert imbalances(counts, "stratified") == faults
    assert imbalances(counts, "uniform") == [each for each in faults if each == TOTAL]

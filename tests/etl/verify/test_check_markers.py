"""Whether slices are balanced, by the counts of their classes."""

from typing import Any

import pytest

from etl.formats import parquet_tables, schemas
from etl.verify.check_markers import balance_faults


def imbalances(counts: list[list[int]], partition: str = "stratified") -> list[str]:
    """The faults of training slices with so many examples of each class; a class without any has no row."""
    slices = [{"name": f"train-{number}", "records": sum(own)} for number, own in enumerate(counts)]
    manifest: dict[str, Any] = {
        "classes": [f"class {label}" for label in range(len(counts[0]))],
        "config": {"partition": partition},
        "splits": {"train": {"slices": slices}},
    }
    tables = [
        parquet_tables.table_of(
            schemas.CLASS_COUNTS,
            [
                {"slice": f"train-{number}", "split": "train", "label": label, "records": records}
                for label, records in enumerate(own)
                if records
            ],
        )
        for number, own in enumerate(counts)
    ]
    return [each.line.removeprefix("the slices are not balanced: ") for each in balance_faults(manifest, tables)]


TOTAL = "slices of train have 2 to 4 examples"


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
    assert imbalances(counts) == faults
    assert imbalances(counts, "uniform") == [each for each in faults if each == TOTAL]

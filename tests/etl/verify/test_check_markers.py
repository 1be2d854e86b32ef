"""Whether slices are balanced, as the counts of their classes tell."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from etl.formats import parquet_tables, schemas
from etl.verify.check_markers import balance_faults


def imbalances(counts: Sequence[Sequence[int]], partition: str = "stratified") -> list[str]:
    """What is told of training slices with so many examples of each class; a class of none has no row."""
    slices = [{"name": f"train-{number}", "records": sum(own)} for number, own in enumerate(counts)]
    manifest: dict[str, Any] = {
        "classes": [f"class {label}" for label in range(len(counts[0]))],
        "config": {"partition": partition},
        "splits": {"train": {"slices": slices}},
    }
    return [
        each.line for each in balance_faults(manifest, [table_of(own, number) for number, own in enumerate(counts)])
    ]


def table_of(own: Sequence[int], number: int) -> pa.Table:
    rows = [
        {"slice": f"train-{number}", "split": "train", "label": label, "records": records}
        for label, records in enumerate(own)
        if records
    ]
    return parquet_tables.table_of(schemas.CLASS_COUNTS, rows)


@pytest.mark.parametrize("counts", [[[2, 1], [2, 1]], [[2, 1], [1, 2], [2, 2]], [[1, 0], [0, 1]]])
def test_slices_within_one_are_balanced(counts: list[list[int]]) -> None:
    assert imbalances(counts) == []


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (
            [[3, 1], [1, 1]],
            ["slices of train have 2 to 4 examples", "slices of train have 1 to 3 examples of class class 0"],
        ),
        ([[3, 1], [1, 3]], [f"slices of train have 1 to 3 examples of class class {label}" for label in (0, 1)]),
        ([[2, 0], [0, 2]], [f"slices of train have 0 to 2 examples of class class {label}" for label in (0, 1)]),
        ([[2, 1], [0, 2], [2, 1]], ["slices of train have 0 to 2 examples of class class 0"]),
    ],
)
def test_slices_that_differ_by_more_are_told(counts: list[list[int]], told: list[str]) -> None:
    """Where a slice has none of a class, it counts as 0."""
    assert imbalances(counts) == [f"the slices are not balanced: {each}" for each in told]
    assert imbalances(counts, "uniform") == [
        f"the slices are not balanced: {each}" for each in told if "class" not in each
    ]

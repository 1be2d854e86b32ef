"""How evenly the examples are divided among splits and slices: from the manifest and the table of class counts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MAX_CLASSES = 50  # with more, a page shows the largest and the smallest
SHOWN_AT_EACH_END = 12
MAX_SLICES = 64  # with more, a page shows histograms

Counts = npt.NDArray[np.int64]
Row = dict[str, Any]


def class_extremes(manifest: Mapping[str, Any], groups: Iterable[pa.Table]) -> dict[str, tuple[Counts, Counts]]:
    """By split: the least and the most examples of each class on any slice, of shape (classes,).

    ``groups`` are class counts: columns split, label and records. Memory is splits x classes.
    """
    classes = len(manifest["classes"])
    least = {split: np.full(classes, np.iinfo(np.int64).max) for split in manifest["splits"]}
    most, seen = ({split: np.zeros(classes, np.int64) for split in manifest["splits"]} for _ in range(2))
    for group in groups:
        found = group.group_by(["split", "label"]).aggregate([("records", how) for how in ("min", "max", "count")])
        for split in found["split"].unique().to_pylist():
            own = found.filter(pc.equal(found["split"], split))
            labels, low, high, slices = (own[name].to_numpy() for name in ("label", *found.column_names[-3:]))
            least[split][labels] = np.minimum(least[split][labels], low)
            most[split][labels] = np.maximum(most[split][labels], high)
            seen[split][labels] += slices
    everywhere = {split: seen[split] == len(each["slices"]) for split, each in manifest["splits"].items()}
    return {split: (np.where(everywhere[split], least[split], 0), most[split]) for split in manifest["splits"]}


def class_matrix(manifest: Mapping[str, Any], slices: Sequence[str], groups: Iterable[pa.Table]) -> Counts | None:
    """Examples by class and slice; None if there are many of either. ``groups`` as of `class_extremes`, with slice."""
    if len(manifest["classes"]) > MAX_CLASSES or len(slices) > MAX_SLICES:
        return None
    matrix = np.zeros((len(manifest["classes"]), len(slices)), np.int64)
    columns = {name: number for number, name in enumerate(slices)}
    for group in groups:
        matrix[group["label"].to_numpy(), [columns[name] for name in group["slice"].to_pylist()]] = group["records"]
    return matrix


def split_balances(manifest: Mapping[str, Any], extremes: Mapping[str, tuple[Counts, Counts]]) -> list[Row]:
    """How evenly each split is divided among its slices, in the manifest's order.

    ``per_slice``, ``bytes_per_slice`` and ``by_class``, of the class that differs most between two slices, are (least,
    most). ``off_share`` is the largest distance, in examples, of a class from its exact share of the split (its part of
    all examples).
    """
    classes = manifest["classes"]
    overall = np.sum([split["by_class"] for split in manifest["splits"].values()], axis=0)
    found = []
    for name, split in manifest["splits"].items():
        least, most = extremes[name]
        worst = int(np.argmax(most - least))
        off_share = np.abs(np.asarray(split["by_class"]) - overall * (split["records"] / max(1, overall.sum())))
        furthest = int(np.argmax(off_share))
        row = {"name": name, "records": split["records"], "bytes": split["bytes"], "slices": len(split["slices"])}
        for title, what in (("per_slice", "records"), ("bytes_per_slice", "bytes")):
            numbers = [each[what] for each in split["slices"]] or [0]
            row[title] = min(numbers), max(numbers)
        row |= {"by_class": (int(least[worst]), int(most[worst])), "worst_class": classes[worst]}
        found.append(row | {"off_share": float(off_share[furthest]), "off_share_class": classes[furthest]})
    return found


def class_rows(manifest: Mapping[str, Any]) -> list[Row]:
    """One for each class, in the order of the labels: examples by split, in all, and the share of all examples."""
    by_split = [split["by_class"] for split in manifest["splits"].values()]
    total = max(1, sum(map(sum, by_split)))
    columns = enumerate(zip(manifest["classes"], *by_split, strict=True))
    return [
        {"label": label, "name": name, "by_split": own, "total": sum(own), "share": sum(own) / total}
        for label, (name, *own) in columns
    ]


def ends_of(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The classes to show: all in the order of labels and none, or with very many the largest and the smallest ones."""
    if len(rows) <= MAX_CLASSES:
        return list(rows), []
    by_size = sorted(rows, key=lambda row: (-row["total"], row["label"]))
    return by_size[:SHOWN_AT_EACH_END], by_size[-SHOWN_AT_EACH_END:]

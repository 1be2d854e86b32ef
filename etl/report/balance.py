"""How evenly the examples are divided among splits and slices: from the manifest and the table of class counts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.report.charts import Chart, Curve, bar_chart, line_chart

MAX_CLASSES = 50  # with more, a page shows the largest and the smallest
SHOWN_AT_EACH_END = 12
MAX_SLICES = 64  # with more, a page lists the largest and the smallest
MAX_BARS = 12  # values of a split; with more, a chart has curves
COLUMNS = ["split", "label", "records"]

Counts = npt.NDArray[np.int64]
Row = dict[str, Any]


def count_classes(manifest: Mapping[str, Any], groups: Iterable[pa.Table]) -> tuple[Counts, Counts]:
    """The least and the most examples of each class on any slice of a split, both of shape (splits, classes).

    From the table of class counts, ``groups`` of its rows with `COLUMNS`.
    """
    splits = list(manifest["splits"])
    shape = len(splits), len(manifest["classes"])
    least, most, seen = np.full(shape, np.iinfo(np.int64).max), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for group in groups:
        label, records = (group[name].to_numpy() for name in ("label", "records"))
        cells = pc.index_in(group["split"], pa.array(splits)).to_numpy(), label
        np.minimum.at(least, cells, records)
        np.maximum.at(most, cells, records)
        np.add.at(seen, cells, 1)
    slices_of_split = np.array([[len(split["slices"])] for split in manifest["splits"].values()])
    return np.where(seen == slices_of_split, least, 0), most


def split_balances(manifest: Mapping[str, Any], counts: tuple[Counts, Counts]) -> list[Row]:
    """How evenly each split is divided among its slices, in the manifest's order.

    ``per_slice``, ``bytes_per_slice`` and ``by_class``, of the class that differs most between two slices, are (least,
    most). ``off_share`` is the largest distance, in examples, of a class from its exact share of the split (its part of
    all examples).
    """
    classes, splits = manifest["classes"], manifest["splits"]
    overall, found = np.sum([split["by_class"] for split in splits.values()], axis=0), []
    for (name, split), least, most in zip(splits.items(), *counts, strict=True):
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


def ranked_chart(title: str, x_label: str, numbers: Mapping[str, Sequence[float]]) -> Chart:
    """``numbers`` by label, a split or not, each from the largest to the smallest, as curves; few of them as bars."""
    ranked = {label: np.sort(np.asarray(own, np.float64))[::-1] for label, own in numbers.items() if own}
    curves = [Curve(label, np.arange(1.0, len(own) + 1), own) for label, own in ranked.items()]
    if max(map(len, numbers.values()), default=0) <= MAX_BARS:
        return bar_chart(title, x_label, curves, "{:,.6g}".format)
    return line_chart(title, x_label, curves, "{:,.6g}".format, from_zero=True)

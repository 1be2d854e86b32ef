"""How evenly the examples lie on splits and slices, in numbers: from the manifest and the table of class counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.slices.manifest import slices_of

MOST_CLASSES = 50  # with more, a page shows the largest and the smallest
SHOWN_AT_EACH_END = 12
MOST_SLICES = 64  # with more, a page shows histograms

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Extremes:
    """The least and the most of a number over the slices of a split."""

    least: int
    most: int

    @property
    def difference(self) -> int:
        return self.most - self.least


@dataclass(frozen=True)
class SplitBalance:
    """How evenly one split is dealt to its slices.

    ``by_class`` are the extremes of the class that differs most between two slices, ``worst_class`` its name.
    ``off_share`` is the largest distance, in examples, of a class from its exact share of the split (its part of all
    examples), ``off_share_class`` that class's name.
    """

    name: str
    records: int
    size_bytes: int
    slices: int
    total: Extremes
    bytes: Extremes
    by_class: Extremes
    worst_class: str
    off_share: float
    off_share_class: str


@dataclass(frozen=True)
class ClassRow:
    """One class: its examples in each split, in all, and its share of all examples."""

    label: int
    name: str
    by_split: tuple[int, ...]
    total: int
    share: float


class ClassSpread:
    """The least and most examples of each class on any slice of a split, from class counts that come in groups of rows.

    Memory is splits x classes, however many slices there are. With few classes and slices it keeps the counts
    themselves too: ``matrix`` is then of shape (classes, slices).
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self._slices = {name: len(split["slices"]) for name, split in manifest["splits"].items()}
        classes = len(manifest["classes"])
        self._least = {name: np.full(classes, np.iinfo(np.int64).max) for name in self._slices}
        self._most = {name: np.zeros(classes, np.int64) for name in self._slices}
        self._seen = {name: np.zeros(classes, np.int64) for name in self._slices}
        names = [each["name"] for _, each in slices_of(manifest)]
        self._columns: dict[str, int] = {}
        self.matrix: Counts | None = None
        if classes <= MOST_CLASSES and len(names) <= MOST_SLICES:
            self._columns = {name: number for number, name in enumerate(names)}
            self.matrix = np.zeros((classes, len(names)), np.int64)

    def add(self, groups: Iterable[pa.Table]) -> "ClassSpread":
        """Add class counts: columns slice, split, label and records."""
        for rows in groups:
            labels, records = rows["label"].to_numpy(), rows["records"].to_numpy()
            splits = rows["split"].combine_chunks().dictionary_encode()
            numbers = splits.indices.to_numpy()
            for number, split in enumerate(splits.dictionary.to_pylist()):
                own = numbers == number
                np.minimum.at(self._least[split], labels[own], records[own])
                np.maximum.at(self._most[split], labels[own], records[own])
                np.add.at(self._seen[split], labels[own], 1)
            if self.matrix is not None:
                columns = [self._columns[name] for name in rows["slice"].to_pylist()]
                self.matrix[labels, columns] = records
        return self

    def extremes(self, split: str) -> tuple[Counts, Counts]:
        """Least and most by class, int64 of shape (classes,); a slice that lacks a class has 0 of it."""
        lacking = self._seen[split] < self._slices[split]
        return np.where(lacking, 0, self._least[split]), self._most[split]


def split_balances(manifest: Mapping[str, Any], spread: ClassSpread) -> list[SplitBalance]:
    """One for each split, in the manifest's order."""
    classes = manifest["classes"]
    overall = np.sum([split["by_class"] for split in manifest["splits"].values()], axis=0)
    found = []
    for name, split in manifest["splits"].items():
        least, most = spread.extremes(name)
        worst = int(np.argmax(most - least))
        off_share = np.abs(np.asarray(split["by_class"]) - overall * (split["records"] / max(1, overall.sum())))
        furthest = int(np.argmax(off_share))
        found.append(
            SplitBalance(
                name,
                split["records"],
                split["bytes"],
                len(split["slices"]),
                _extremes([each["records"] for each in split["slices"]]),
                _extremes([each["bytes"] for each in split["slices"]]),
                Extremes(int(least[worst]), int(most[worst])),
                classes[worst],
                float(off_share[furthest]),
                classes[furthest],
            )
        )
    return found


def _extremes(values: Sequence[int]) -> Extremes:
    return Extremes(min(values, default=0), max(values, default=0))


def class_rows(manifest: Mapping[str, Any]) -> list[ClassRow]:
    """One for each class, in the order of the labels."""
    by_split = [split["by_class"] for split in manifest["splits"].values()]
    total = sum(map(sum, by_split))
    rows = []
    for label, name in enumerate(manifest["classes"]):
        own = tuple(counts[label] for counts in by_split)
        rows.append(ClassRow(label, name, own, sum(own), sum(own) / max(1, total)))
    return rows


def ends_of(rows: Sequence[ClassRow]) -> tuple[list[ClassRow], list[ClassRow]]:
    """The classes to show: all in the order of labels and none, or with very many the largest and the smallest ones."""
    if len(rows) <= MOST_CLASSES:
        return list(rows), []
    by_size = sorted(rows, key=lambda row: (-row.total, row.label))
    return by_size[:SHOWN_AT_EACH_END], by_size[-SHOWN_AT_EACH_END:]

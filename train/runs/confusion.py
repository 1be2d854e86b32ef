"""True and predicted classes: counted over a split, written and read as JSON."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

FORMAT = "ringslice.confusion/1"
MAX_CLASSES = 5_000  # whose table is counted: it has their square
CELLS_AT_ONCE = 1 << 20

Counts = npt.NDArray[np.int64]


def confusion_file(split: str) -> str:
    """The file with the confusion matrix of this split."""
    return f"confusion-{split}.json"


class Confusion:
    """Of the examples of ``split``: ``counts`` is int64 of shape (classes, classes), by true and by predicted class;
    empty if there are more than `MAX_CLASSES`.
    """

    def __init__(self, split: str, classes: Sequence[str]) -> None:
        self.split = split
        self.classes = classes
        side = len(classes) if len(classes) <= MAX_CLASSES else 0
        self.counts = np.zeros((side, side), np.int64)

    def add(self, labels: npt.NDArray[Any], predicted: npt.NDArray[Any], weights: npt.NDArray[Any]) -> None:
        """Count a batch: numbers of classes, and weights of 0 or 1, each of shape (batch,)."""
        if self.counts.size:
            np.add.at(self.counts, (labels, predicted), weights.astype(np.int64))

    def sum_over_ranks(self, total: Callable[[Counts], Counts]) -> None:
        """Take the sum of all ranks' counts; ``total`` sums an array over the ranks. Some rows at a time, to need no
        second table.
        """
        rows = max(1, CELLS_AT_ONCE // max(1, len(self.counts)))
        for start in range(0, len(self.counts), rows):
            self.counts[start : start + rows] = total(self.counts[start : start + rows])

    def to_json(self) -> dict[str, Any]:
        """The table as JSON has it, each row as an array of its own."""
        return {
            "format": FORMAT,
            "split": self.split,
            "classes": list(self.classes),
            "counts": list(self.counts),
        }

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Self:
        """The counterpart of `to_json`. Raises KeyError, TypeError or ValueError if ``recorded`` is damaged."""
        if recorded["format"] != FORMAT:
            raise ValueError(f"its format is {recorded['format']!r}, not {FORMAT!r}")
        found, counts = cls(str(recorded["split"]), recorded["classes"]), np.array(recorded["counts"])
        if counts.shape != found.counts.shape or counts.dtype.kind != "i":
            raise ValueError(f"counts of shape {counts.shape} for {len(found.classes)} classes, or not integers")
        found.counts = counts.astype(np.int64)
        return found

"""Which classes are taken for which: counted over a split, as a table of JSON."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from etl.stages.run_files import CONFUSION_FORMAT

MOST_CLASSES = 5_000  # whose table is counted: it has their square


class Confusion:
    """Of the examples of ``split``: ``counts`` is int64 of shape (classes, classes), by true and by predicted class;
    empty where there are more than `MOST_CLASSES`.
    """

    def __init__(self, split: str, classes: Sequence[str]) -> None:
        self.split = split
        self.classes = classes
        side = len(classes) if len(classes) <= MOST_CLASSES else 0
        self.counts = np.zeros((side, side), np.int64)

    def add(self, labels: npt.NDArray[Any], predicted: npt.NDArray[Any], weights: npt.NDArray[Any]) -> None:
        """Count a batch: numbers of classes, and weights of 0 or 1, each of shape (batch,)."""
        if self.counts.size:
            np.add.at(self.counts, (labels, predicted), weights.astype(np.int64))

    def sum_over_ranks(self, total: Callable[[Sequence[float]], list[float]]) -> None:
        """Take the sum of all ranks' counts; ``total`` sums numbers over the ranks."""
        if self.counts.size:
            counts = total(self.counts.ravel().astype(float).tolist())
            self.counts = np.array(counts).astype(np.int64).reshape(self.counts.shape)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": CONFUSION_FORMAT,
            "split": self.split,
            "classes": list(self.classes),
            "counts": self.counts.tolist(),
        }

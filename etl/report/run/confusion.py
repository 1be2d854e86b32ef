"""How well each class is known, and what it is taken for: from the confusion matrix. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etl.report.run.files import Confusion

MOST_CLASSES = 50  # with more, the worst ones come first
SHOWN_MISTAKES = 10


@dataclass(frozen=True)
class ClassScore:
    """One class, of so many ``examples``, ``correct`` of them known; so many were ``predicted`` to be of it.

    ``mistaken_for`` is the class that it was taken for most often, '' where it never was taken for another.
    """

    label: int
    name: str
    examples: int
    correct: int
    predicted: int
    mistaken_for: str
    mistakes: int

    @property
    def accuracy(self) -> float | None:
        """The part of its examples that was known (its recall)."""
        return self.correct / self.examples if self.examples else None

    @property
    def precision(self) -> float | None:
        """The part of what was taken for it that it was."""
        return self.correct / self.predicted if self.predicted else None


@dataclass(frozen=True)
class Mistake:
    """One class taken for another, and how often; ``share`` is of all examples of the true class."""

    true: str
    predicted: str
    number: int
    share: float


def class_scores(confusion: Confusion) -> list[ClassScore]:
    """One for each class, by label; of more than `MOST_CLASSES` the least accurate first (none without examples is)."""
    counts = confusion.counts
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    scores = []
    for label, name in enumerate(confusion.classes):
        other = int(wrong[label].argmax())
        number = int(wrong[label, other])
        told = int(counts[label].sum()), int(counts[label, label]), int(counts[:, label].sum())
        scores.append(ClassScore(label, name, *told, confusion.classes[other] if number else "", number))
    if len(scores) > MOST_CLASSES:
        scores.sort(key=lambda each: (each.accuracy is None, each.accuracy or 0.0, each.label))
    return scores


def common_mistakes(confusion: Confusion) -> list[Mistake]:
    """The `SHOWN_MISTAKES` most frequent ones, the most frequent first."""
    wrong = confusion.counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:SHOWN_MISTAKES]
    totals, names = confusion.counts.sum(axis=1), confusion.classes
    pairs: Sequence[tuple[int, int]] = [divmod(int(each), len(names)) for each in order]
    return [
        Mistake(names[true], names[taken], int(wrong[true, taken]), float(wrong[true, taken] / totals[true]))
        for true, taken in pairs
        if wrong[true, taken]
    ]


def all_correct(confusion: Confusion) -> tuple[int, int]:
    """Examples that were known, and all."""
    return int(np.trace(confusion.counts)), int(confusion.counts.sum())

"""Accuracy by class, and the most frequent mistakes: from the confusion matrix. Pure."""

from dataclasses import dataclass

import numpy as np

from etl.report.run.files import Confusion

MAX_CLASSES = 50  # with more, the worst ones come first
MAX_MISTAKES = 10


@dataclass(frozen=True)
class ClassScore:
    """One class: its examples, how many of them are correct, and how many examples of all were predicted to be of it.

    ``accuracy`` (of its examples) and ``precision`` (of what was predicted to be of it) are None if there are none.
    ``mistaken_for`` is the class that it was taken for most often, '' if there were no ``mistakes``.
    """

    label: int
    name: str
    examples: int
    correct: int
    accuracy: float | None
    precision: float | None
    mistaken_for: str
    mistakes: int


@dataclass(frozen=True)
class Mistake:
    """One class taken for another, and how often; ``share`` is of all examples of the true class."""

    true: str
    predicted: str
    number: int
    share: float


def class_scores(confusion: Confusion) -> list[ClassScore]:
    """By label; of more than `MAX_CLASSES` the least accurate first, and those without examples last."""
    counts, wrong, names = confusion.counts, _wrong(confusion), confusion.classes
    scores = []
    for label, name in enumerate(names):
        other = int(wrong[label].argmax())
        examples, correct, predicted = int(counts[label].sum()), int(counts[label, label]), int(counts[:, label].sum())
        accuracy, precision = (correct / number if number else None for number in (examples, predicted))
        mistakes = int(wrong[label, other])
        taken = names[other] if mistakes else ""
        scores.append(ClassScore(label, name, examples, correct, accuracy, precision, taken, mistakes))
    if len(scores) > MAX_CLASSES:
        scores.sort(key=lambda each: (each.accuracy is None, each.accuracy or 0.0, each.label))
    return scores


def common_mistakes(confusion: Confusion) -> list[Mistake]:
    """At most `MAX_MISTAKES`, the most frequent first."""
    wrong, names = _wrong(confusion), confusion.classes
    totals = confusion.counts.sum(axis=1)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_MISTAKES]
    pairs = [divmod(int(each), len(names)) for each in order]
    return [
        Mistake(names[true], names[taken], int(wrong[true, taken]), float(wrong[true, taken] / totals[true]))
        for true, taken in pairs
        if wrong[true, taken]
    ]


def _wrong(confusion: Confusion) -> np.ndarray:
    wrong = confusion.counts.copy()
    np.fill_diagonal(wrong, 0)
    return wrong

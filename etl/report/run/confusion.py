"""Accuracy by class, and the most frequent mistakes: from the confusion matrix. Pure."""

from typing import Any

import numpy as np

from etl.report.run.files import Confusion

MAX_CLASSES = 50  # with more, the worst ones come first
MAX_MISTAKES = 10

Row = dict[str, Any]


def class_scores(confusion: Confusion) -> list[Row]:
    """By label; of more than `MAX_CLASSES` the least accurate first, and those without examples last.

    ``accuracy`` is the part of the class's examples, ``precision`` of those predicted to be of it, that is correct;
    None if there are none. ``mistakes`` were ``mistaken_for`` another class, the most frequent one.
    """
    counts, wrong, names = confusion.counts, _wrong(confusion), confusion.classes
    scores = []
    for label, name in enumerate(names):
        other = int(wrong[label].argmax())
        examples, correct, predicted = int(counts[label].sum()), int(counts[label, label]), int(counts[:, label].sum())
        row: Row = {"name": name, "examples": examples, "correct": correct}
        row |= {"accuracy": correct / examples if examples else None}
        row |= {"precision": correct / predicted if predicted else None}
        scores.append(row | {"mistaken_for": names[other], "mistakes": int(wrong[label, other])})
    if len(scores) > MAX_CLASSES:
        scores.sort(key=lambda row: (row["accuracy"] is None, row["accuracy"] or 0.0))
    return scores


def common_mistakes(confusion: Confusion) -> list[Row]:
    """At most `MAX_MISTAKES`, the most frequent first; ``share`` is of all examples of the true class."""
    wrong, names = _wrong(confusion), confusion.classes
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_MISTAKES]
    return [
        {"true": names[true], "predicted": names[taken], "number": int(wrong[true, taken])}
        | {"share": float(wrong[true, taken] / confusion.counts[true].sum())}
        for true, taken in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[true, taken]
    ]


def _wrong(confusion: Confusion) -> np.ndarray:
    wrong = confusion.counts.copy()
    np.fill_diagonal(wrong, 0)
    return wrong

"""Gather what the page of a run shows, by the names that its template uses."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np

from etl import __version__
from etl.report.render import UNKNOWN, accuracy, count, duration, loss, short, speed
from etl.stages.summary import text_of
from train.report.metrics import Epoch, part_times, usage_by_rank
from train.report.run_charts import confusion_map, epoch_charts, step_charts, wait_chart
from train.report.run_files import RunFiles
from train.runs.confusion import Confusion

STOPPED = {
    "epochs": "all its epochs are done",
    "steps": "the number of steps that was asked for is reached",
    "accuracy": "the accuracy that was asked for is reached",
    "no progress": "it no longer got better",
    "time": "its time was up",
}
MAX_RING_CHANGES = 4
MAX_RANKS = 16
MAX_CLASSES = 50  # with more, the least accurate ones come first
MAX_MISTAKES = 10

Facts = dict[str, Any]


def gather_run(run: RunFiles) -> Facts:
    """What the template needs; pure."""
    has_steps, usage = bool(run.metrics.steps.num_rows), usage_by_rank(run.metrics)
    return {
        "name": run.folder.name,
        "root": run.folder.uri,
        "version": __version__,
        "finished": run.result is not None,
        "finished_at": run.record.get("finished"),
        "stopped": why_stopped(run),
        "missing": run.missing,
        "tiles": _tiles(run),
        "facts": _steps_in_words(run),
        "epoch_charts": epoch_charts(run.epochs),
        "step_charts": step_charts(run.metrics),
        **_epoch_table(run.epochs),
        "waits": part_times(run.metrics) if has_steps else [],
        "wait_charts": [wait_chart(run.metrics)] if run.metrics.steps.num_rows > 1 else [],
        "usage": usage[:MAX_RANKS],
        "hidden_ranks": len(usage[MAX_RANKS:]),
        **_classes(run.confusion),
        "recipe": [(name, text_of(value)) for name, value in run.settings.items()],
        "environment": _environment(run.record),
    }


def why_stopped(run: RunFiles) -> str:
    """In words; empty if it is not known."""
    reason = run.result.get("stopped") if run.result else None
    return STOPPED.get(reason, str(reason)) if reason else ""


def steps_done(run: RunFiles) -> int:
    """Steps of the optimizer, by the result, or as far as the metrics go."""
    if run.result and "steps" in run.result:
        return int(run.result["steps"])
    last = [*run.metrics.steps["step"].to_pylist()[-1:], *(int(epoch["step"]) for epoch in run.epochs[-1:])]
    return max(last, default=0)


def best_epoch(epochs: Sequence[Epoch]) -> tuple[str, float, int] | None:
    """(split, accuracy, epoch) of the first epoch with the best accuracy by validation, or by the test split."""
    for split in ("validation", "test"):
        name = f"{split}_accuracy"
        if known := [epoch for epoch in epochs if math.isfinite(epoch.get(name, math.nan))]:
            best = max(known, key=lambda epoch: epoch[name])
            return split, best[name], best["epoch"]
    return None


def ranks_of(run: RunFiles) -> str:
    """The numbers of ranks that the run had, one after the other."""
    sizes = [size for size, _ in groupby(run.metrics.steps["ranks"].to_pylist())]
    if not sizes and run.record.get("ranks"):
        sizes = [len(run.record["ranks"])]
    if len(sizes) <= MAX_RING_CHANGES:
        return ", then ".join(map(count, sizes))
    return f"{count(min(sizes))} to {count(max(sizes))}"


def _tiles(run: RunFiles) -> list[tuple[str, str]]:
    """The few numbers that a reader looks for first: (number, what it is)."""
    found = []
    final, planned = run.result["result"] if run.result else {}, run.settings.get("epochs")
    for name, wording in (("test_accuracy", accuracy), ("test_loss", loss)):
        if name in final:
            found.append((wording(final[name]), name.replace("_", " ")))
    if best := best_epoch(run.epochs):
        found.append((accuracy(best[1]), f"best {best[0]} accuracy, epoch {best[2]}"))
    found.append((count(len(run.epochs)), f"of {text_of(planned)} epochs" if planned else "epochs"))
    found.append((count(steps_done(run)), "steps"))
    if ranks := ranks_of(run):
        found.append((ranks, "ranks"))
    if speeds := [epoch["images_per_s"] for epoch in run.epochs if "images_per_s" in epoch]:
        found.append((speed(median(speeds)), "images/s, median of epochs"))
    if run.metrics.steps.num_rows:
        found.append((duration(float(run.metrics.end_s[-1])), "from the first step to the last"))
    return found


def _steps_in_words(run: RunFiles) -> list[tuple[str, str, bool]]:
    """(name, text, whether it is a fingerprint)."""
    result, steps, found = run.result or {}, run.metrics.steps, []
    if steps.num_rows:
        for name, time in zip(("first step", "last step"), steps["time"].take([0, len(steps) - 1]), strict=True):
            found.append((name, f"{time.as_py().astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC", False))
        found.append(("examples", f"{count(sum(steps['examples'].to_pylist()))} in the recorded steps", False))
        numbers = steps["step"].to_pylist()
        if lost := numbers[-1] - numbers[0] + 1 - len(numbers):
            found.append(("not recorded", f"{count(lost)} steps: the rank that had their numbers was lost", False))
    if result.get("rolled_back_steps"):
        found.append(("rolled back", f"{count(result['rolled_back_steps'])} steps were lost and taken again", False))
    if "slices" in result:
        found.append(("slices", short(str(result["slices"])), True))
    return found


def _epoch_table(epochs: Sequence[Epoch]) -> Facts:
    names = dict.fromkeys(name for epoch in epochs for name in epoch if name not in ("epoch", "step"))
    return {
        "epoch_columns": [(name, name.replace("_per_s", "/s").replace("_", " ")) for name in names],
        "epoch_rows": [
            [count(epoch["epoch"]), count(epoch["step"]) if epoch["step"] else UNKNOWN]
            + [_cell(name, epoch.get(name)) for name in names]
            for epoch in epochs
        ],
    }


def _cell(name: str, value: float | None) -> str:
    wordings = {"loss": loss, "accuracy": accuracy, "s": speed}
    if wording := wordings.get(name.rpartition("_")[2]):
        return wording(value)
    return UNKNOWN if value is None else f"{value:,.6g}"


def _classes(confusion: Confusion | None) -> Facts:
    if confusion is None:
        return {"confusion": None}
    scores = class_scores(confusion)
    correct, examples = int(np.trace(confusion.counts)), int(confusion.counts.sum())
    summary = f"{count(correct)} of {count(examples)} examples of {confusion.split} are on the diagonal: correct."
    mistaken = sorted((row for row in scores if row["mistakes"]), key=lambda row: -row["mistakes"])
    return {
        "confusion": confusion_map(confusion, summary),
        "confusion_split": confusion.split,
        "correct": correct,
        "examples": examples,
        "scores": scores[:MAX_CLASSES],
        "more_scores": scores[MAX_CLASSES:],
        "mistakes": mistaken[:MAX_MISTAKES],
        "wrong": examples - correct,
    }


def class_scores(confusion: Confusion) -> list[Facts]:
    """By label; of more than `MAX_CLASSES` the least accurate first, and those without examples last.

    ``accuracy`` is the part of the class's examples, ``precision`` of those predicted to be of it, that is correct;
    None if there are none. ``mistakes`` were ``mistaken_for`` another class, the most frequent one.
    """
    counts, names = confusion.counts, confusion.classes
    wrong = counts - np.diag(counts.diagonal())
    columns = counts.sum(axis=1), counts.diagonal(), counts.sum(axis=0), wrong.argmax(axis=1), wrong.max(axis=1)
    scores = [
        {
            "name": name,
            "examples": examples,
            "correct": correct,
            "accuracy": correct / examples if examples else None,
            "precision": correct / predicted if predicted else None,
            "mistaken_for": names[other],
            "mistakes": mistakes,
        }
        for name, examples, correct, predicted, other, mistakes in zip(
            names, *(column.tolist() for column in columns), strict=True
        )
    ]
    if len(scores) > MAX_CLASSES:
        scores.sort(key=lambda row: (row["accuracy"] is None, row["accuracy"] or 0.0))
    return scores


def _environment(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ``run.json`` has: of the ranks only how many were on each host."""
    hosts = Counter(str(rank.get("host")) for rank in record.get("ranks", ()))
    shown = {**record, "command": " ".join(record.get("command") or ()), "ranks": hosts}
    return [(name, text_of(value)) for name, value in shown.items() if value]

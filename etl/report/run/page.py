"""The page of a run, by the names that its template has for what is on it."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np

from etl import __version__
from etl.report.render import check_target, folders_around, publish
from etl.report.run.confusion import MAX_CLASSES, class_scores, common_mistakes
from etl.report.run.curves import SPLITS, confusion_map, epoch_charts, step_charts, wait_chart
from etl.report.run.files import RunFiles, read_run
from etl.report.run.metrics import Epoch
from etl.report.run.waits import part_times, usage_by_rank
from etl.report.text import UNKNOWN, accuracy, count, duration, loss, plain, short, speed
from etl.stages.summary import Summary
from etl.storage.place import Place


def write_run_report(folder: Place, file: Place) -> Summary:
    """Write the page of the run in ``folder`` to ``file``; one that is there is replaced.

    Raises UsageError if ``file`` cannot be a report's, DataError if a file of the run is damaged.
    """
    check_target(file, folders_around(folder))
    run = read_run(folder)
    facts = {
        "run": folder.uri,
        "bytes": publish("run.html", gather_run(run), file),
        "finished": run.result is not None,
        "epochs": len(run.epochs),
        "steps": steps_done(run),
        "missing": [name for name, _ in run.missing],
    }
    return Summary("report", file.uri, False, facts)


STOPPED = {
    "epochs": "all its epochs are done",
    "steps": "the number of steps that was asked for is reached",
    "accuracy": "the accuracy that was asked for is reached",
    "no progress": "it no longer got better",
    "time": "its time was up",
}
SHOWN_SETTINGS = ("model", "batch", "accumulate", "precision", "lr", "decay", "augment", "seed")
MAX_RING_CHANGES = 4
MAX_RANKS = 16

Facts = dict[str, Any]


def gather_run(run: RunFiles) -> Facts:
    """What the template needs; pure."""
    has_steps, usage = bool(run.metrics.steps.num_rows), usage_by_rank(run.metrics)
    return {
        "name": run.name,
        "root": run.folder.uri,
        "version": __version__,
        "finished": run.result is not None,
        "finished_at": run.record.get("finished"),
        "stopped": why_stopped(run),
        "missing": run.missing,
        "tiles": _tiles(run),
        "facts": _about(run),
        "results": _results(run),
        "epoch_charts": epoch_charts(run.epochs),
        "step_charts": step_charts(run.metrics),
        **_epoch_table(run.epochs),
        "waits": part_times(run.metrics) if has_steps else [],
        "wait_charts": [wait_chart(run.metrics)] if run.metrics.steps.num_rows > 1 else [],
        "usage": usage[:MAX_RANKS],
        "hidden_ranks": len(usage[MAX_RANKS:]),
        **_classes(run),
        "recipe": [(name, plain(value)) for name, value in run.recipe_or_settings.items()],
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
    return max(
        [*run.metrics.steps["step"].to_pylist()[-1:], *(int(epoch["step"]) for epoch in run.epochs[-1:])], default=0
    )


def best_epoch(epochs: Sequence[Epoch]) -> tuple[str, float, int] | None:
    """(split, accuracy, epoch) of the first epoch with the best accuracy by validation, or by the test split."""
    for split in ("validation", "test"):
        name = f"{split}_accuracy"
        found = [(epoch[name], -epoch["epoch"]) for epoch in epochs if _has(epoch, name)]
        if found:
            best, number = max(found)
            return split, best, -number
    return None


def _has(epoch: Epoch, name: str) -> bool:
    return math.isfinite(epoch.get(name, math.nan))


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
    final = run.result["result"] if run.result else {}
    if "test_accuracy" in final:
        found.append((accuracy(final["test_accuracy"]), "test accuracy"))
    if best := best_epoch(run.epochs):
        split, value, epoch = best
        found.append((accuracy(value), f"best {split} accuracy, epoch {epoch}"))
    planned = run.recipe_or_settings.get("epochs")
    found.append((count(len(run.epochs)), f"of {plain(planned)} epochs" if planned else "epochs"))
    found.append((count(steps_done(run)), "steps"))
    if ranks := ranks_of(run):
        found.append((ranks, "ranks"))
    if speeds := [epoch["images_per_s"] for epoch in run.epochs if _has(epoch, "images_per_s")]:
        found.append((speed(median(speeds)), "images/s, median of epochs"))
    if run.metrics.steps.num_rows:
        found.append((duration(float(run.metrics.seconds[-1])), "from the first step to the last"))
    return found


def _about(run: RunFiles) -> list[tuple[str, str, bool]]:
    """(name, text, whether it is a fingerprint)."""
    recipe, result, steps = run.recipe_or_settings, run.result or {}, run.metrics.steps
    found = [(name, plain(recipe[name]), False) for name in SHOWN_SETTINGS if name in recipe]
    if steps.num_rows:
        for name, number in (("first step", 0), ("last step", -1)):
            time = steps["time"].to_pylist()[number].astimezone(UTC)
            found.append((name, f"{time:%Y-%m-%d %H:%M:%S} UTC", False))
        found.append(("examples", f"{count(sum(steps['examples'].to_pylist()))} in the recorded steps", False))
        numbers = steps["step"].to_pylist()
        if lost := numbers[-1] - numbers[0] + 1 - len(numbers):
            found.append(("not recorded", f"{count(lost)} steps: the rank that had their numbers was lost", False))
    if result.get("rolled_back_steps"):
        found.append(("rolled back", f"{count(result['rolled_back_steps'])} steps were lost and taken again", False))
    if "slices" in result:
        found.append(("slices", short(str(result["slices"])), True))
    return found


def _results(run: RunFiles) -> list[Facts]:
    """By split: the last loss and accuracy, and the best accuracy with its epoch."""
    final = run.result["result"] if run.result else {}
    found = []
    for split in SPLITS:
        names = (f"{split}_loss", f"{split}_accuracy")
        measured = [epoch for epoch in run.epochs if any(_has(epoch, name) for name in names)]
        known = [epoch for epoch in measured if _has(epoch, names[1])]
        best = max(known, key=lambda epoch: epoch[names[1]], default=None)
        is_final = any(name in final for name in names)
        if measured or is_final:
            own = final if is_final else measured[-1]
            found.append(
                {
                    "split": split,
                    "loss": own.get(names[0]),
                    "accuracy": own.get(names[1]),
                    "when": "at the end" if is_final else f"after epoch {own['epoch']}",
                    "best": best and best[names[1]],
                    "best_epoch": best and best["epoch"],
                }
            )
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


def _classes(run: RunFiles) -> Facts:
    if run.confusion is None:
        return {"confusion": None}
    scores, counts = class_scores(run.confusion), run.confusion.counts
    correct, examples = int(np.trace(counts)), int(counts.sum())
    summary = f"{count(correct)} of {count(examples)} examples of {run.confusion.split} are on the diagonal: correct."
    return {
        "confusion": confusion_map(run.confusion, summary),
        "confusion_split": run.confusion.split,
        "correct": correct,
        "examples": examples,
        "scores": scores[:MAX_CLASSES],
        "more_scores": scores[MAX_CLASSES:],
        "mistakes": common_mistakes(run.confusion),
        "wrong": examples - correct,
    }


def _environment(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ``run.json`` has: of the ranks only how many were on each host."""
    found = []
    for name, value in record.items():
        if name == "ranks" and isinstance(value, list):
            hosts = [str(each.get("host")) if isinstance(each, dict) else str(each) for each in value]
            found.append(("ranks by host", plain({host: hosts.count(host) for host in dict.fromkeys(hosts)})))
        elif name == "command" and isinstance(value, list):
            found.append((name, " ".join(map(str, value))))
        elif value is not None:
            found.append((name, plain(value)))
    return found

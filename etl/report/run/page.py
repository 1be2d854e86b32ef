"""All that a page tells of a run, by the names that its template has for it."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np

from etl import __version__
from etl.report.drawing import Chart
from etl.report.render import check_target, render
from etl.report.run import charts
from etl.report.run.confusion import MOST_CLASSES, all_correct, class_scores, common_mistakes
from etl.report.run.curves import Series
from etl.report.run.files import RunFiles, read_run
from etl.report.run.metrics import Epoch
from etl.report.run.tuning import gather_waits
from etl.report.text import UNKNOWN, accuracy, count, duration, loss, plain, short, speed
from etl.stages.layout import STAGE_FOLDERS
from etl.stages.summary import Summary
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place


def write_run_report(folder: Place, file: Place) -> Summary:
    """Write the page of the run in ``folder`` to ``file``; one that is there is replaced.

    Raises UsageError where ``file`` cannot be a report's, DataError where a file of the run is damaged.
    """
    others = [folder.parent.parent / name for name in STAGE_FOLDERS] if folder.parent.name == "runs" else []
    check_target(file, [folder, *others])
    run = read_run(folder)
    page = render("run.html", gather_run(run)).encode()
    replace_bytes(file, file.parent, page)
    told = {
        "run": folder.uri,
        "bytes": len(page),
        "finished": run.result is not None,
        "epochs": len(run.epochs),
        "steps": steps_done(run),
        "missing": [name for name, _ in run.missing],
    }
    return Summary("report", file.uri, False, told)


SPLITS = ("train", "validation", "test")
STOPPED = {
    "epochs": "all its epochs are done",
    "steps": "the number of steps that was asked for is reached",
    "accuracy": "the accuracy that was asked for is reached",
    "no progress": "it no longer got better",
    "time": "its time was up",
}
MOST_RING_CHANGES = 4

Facts = dict[str, Any]


def gather_run(run: RunFiles) -> Facts:
    """What the template needs; pure."""
    settings = run.result["settings"] if run.result else {}
    recipe = run.recipe or settings
    return {
        "name": run.name,
        "root": run.folder.uri,
        "version": __version__,
        "finished": run.result is not None,
        "finished_at": run.record.get("finished"),
        "stopped": why_stopped(run),
        "missing": run.missing,
        "tiles": _tiles(run, recipe),
        "facts": _about(run, recipe),
        "results": _results(run),
        **_curves(run),
        **gather_waits(run.metrics.steps, recipe),
        **_classes(run),
        "recipe": [(name, plain(value)) for name, value in recipe.items()],
        "environment": _environment(run.record),
    }


def why_stopped(run: RunFiles) -> str:
    told = run.result.get("stopped") if run.result else None
    return STOPPED.get(told, str(told)) if told else ""


def steps_done(run: RunFiles) -> int:
    """Steps of the optimizer, as the result tells, or as far as the metrics go."""
    if run.result and "steps" in run.result:
        return int(run.result["steps"])
    last = [step.number for step in run.metrics.steps[-1:]] + [int(epoch["step"]) for epoch in run.epochs[-1:]]
    return max(last, default=0)


def best_epoch(epochs: Sequence[Epoch]) -> tuple[str, float, int] | None:
    """(split, accuracy, epoch) of the first epoch with the best accuracy by validation, or by the test split."""
    for split in ("validation", "test"):
        name = f"{split}_accuracy"
        found = [(epoch[name], -epoch["epoch"]) for epoch in epochs if _known(epoch, name)]
        if found:
            best, number = max(found)
            return split, best, -number
    return None


def _known(epoch: Epoch, name: str) -> bool:
    return not math.isnan(epoch.get(name, math.nan))


def _tiles(run: RunFiles, recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The few numbers that a reader looks for first: (number, what it is)."""
    found = []
    result = run.result["result"] if run.result else {}
    if "test_accuracy" in result:
        found.append((accuracy(result["test_accuracy"]), "test accuracy"))
    if best := best_epoch(run.epochs):
        split, value, epoch = best
        found.append((accuracy(value), f"best {split} accuracy, epoch {epoch}"))
    planned = recipe.get("epochs")
    found.append((count(len(run.epochs)), f"of {plain(planned)} epochs" if planned else "epochs"))
    found.append((count(steps_done(run)), "steps"))
    if ranks := ranks_of(run):
        found.append((ranks, "ranks"))
    if speeds := [epoch["images_per_s"] for epoch in run.epochs if _known(epoch, "images_per_s")]:
        found.append((speed(median(speeds)), "images/s, median of epochs"))
    if steps := run.metrics.steps:
        seconds = (steps[-1].time - steps[0].time).total_seconds() + float(steps[0].mean_s.sum())
        found.append((duration(seconds), "from the first step to the last"))
    return found


def ranks_of(run: RunFiles) -> str:
    """How many ranks there were, one after the other."""
    sizes = [size for size, _ in groupby(step.ranks for step in run.metrics.steps)]
    if not sizes and run.record.get("ranks"):
        sizes = [len(run.record["ranks"])]
    if len(sizes) <= MOST_RING_CHANGES:
        return ", then ".join(map(count, sizes))
    return f"{count(min(sizes))} to {count(max(sizes))}"


def _about(run: RunFiles, recipe: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """(name, text, whether it is a fingerprint)."""
    found = [
        (name, plain(recipe[name]), False)
        for name in ("model", "batch", "accumulate", "precision", "lr", "decay", "augment", "seed")
        if name in recipe
    ]
    steps, result = run.metrics.steps, run.result or {}
    if steps:
        found.append(("first step", f"{steps[0].time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC", False))
        found.append(("last step", f"{steps[-1].time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC", False))
        found.append(("examples", f"{count(sum(step.examples for step in steps))} in the steps told of", False))
    if lost := run.metrics.lost_steps:
        found.append(("not told of", f"{count(lost)} steps: the rank that kept their numbers was lost", False))
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
        told = [epoch for epoch in run.epochs if _known(epoch, f"{split}_loss") or _known(epoch, f"{split}_accuracy")]
        own: Facts = {f"{split}_loss": None, f"{split}_accuracy": None, "epoch": None} | (told[-1] if told else {})
        if f"{split}_loss" in final or f"{split}_accuracy" in final:
            own |= {**final, "epoch": None}
        elif not told:
            continue
        known = [epoch for epoch in told if _known(epoch, f"{split}_accuracy")]
        best = max(known, key=lambda epoch: epoch[f"{split}_accuracy"], default=None)
        found.append(
            {
                "split": split,
                "loss": own[f"{split}_loss"],
                "accuracy": own[f"{split}_accuracy"],
                "when": "at the end" if own["epoch"] is None else f"after epoch {own['epoch']}",
                "best": best and best[f"{split}_accuracy"],
                "best_epoch": best and best["epoch"],
            }
        )
    return found


def _curves(run: RunFiles) -> Facts:
    epochs = run.epochs
    numbers = np.array([epoch["epoch"] for epoch in epochs], np.float64)
    drawn: list[Chart] = []
    for what in ("loss", "accuracy"):
        series = {split: _column(epochs, f"{split}_{what}") for split in SPLITS}
        series = {split: values for split, values in series.items() if not np.isnan(values).all()}
        if series:
            drawn.append(charts.epoch_curves(numbers, series, what))
    speeds = _column(epochs, "images_per_s")
    if not np.isnan(speeds).all():
        drawn.append(charts.speed_curve(numbers, speeds))
    names = dict.fromkeys(name for epoch in epochs for name in epoch if name not in ("epoch", "step"))
    return {
        "epoch_charts": drawn,
        "step_charts": _step_charts(run),
        "epoch_columns": [(name, name.replace("_per_s", "/s").replace("_", " ")) for name in names],
        "epoch_rows": [
            [count(epoch["epoch"]), count(epoch["step"]) if epoch["step"] else UNKNOWN]
            + [_cell(name, epoch.get(name)) for name in names]
            for epoch in epochs
        ],
    }


def _step_charts(run: RunFiles) -> list[Chart]:
    steps = run.metrics.steps
    numbers = np.array([step.number for step in steps], np.float64)
    losses, rates = (np.array([getattr(step, name) for step in steps], np.float64) for name in ("loss", "rate"))
    drawn = []
    if not np.isnan(losses).all():
        drawn.append(charts.step_curve(numbers, losses, "loss"))
    if not np.isnan(rates).all():
        drawn.append(charts.rate_curve(numbers, rates))
    return drawn


def _column(epochs: Sequence[Epoch], name: str) -> Series:
    return np.array([epoch.get(name, math.nan) for epoch in epochs], np.float64)


def _cell(name: str, value: float | None) -> str:
    if name.endswith("_loss"):
        return loss(value)
    if name.endswith("_accuracy"):
        return accuracy(value)
    if name.endswith("_per_s"):
        return speed(value)
    if value is None or math.isnan(value):
        return UNKNOWN
    return f"{value:,.6g}"


def _classes(run: RunFiles) -> Facts:
    if run.confusion is None:
        return {"confusion": None}
    scores = class_scores(run.confusion)
    correct, examples = all_correct(run.confusion)
    return {
        "confusion": charts.confusion_map(run.confusion, correct, examples),
        "confusion_split": run.confusion.split,
        "correct": correct,
        "examples": examples,
        "scores": scores[:MOST_CLASSES],
        "more_scores": scores[MOST_CLASSES:],
        "mistakes": common_mistakes(run.confusion),
        "wrong": examples - correct,
    }


def _environment(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ``run.json`` tells: of the ranks only how many were on each host."""
    found = []
    for name, value in record.items():
        if name == "ranks" and isinstance(value, list):
            hosts = [str(each.get("host")) if isinstance(each, dict) else str(each) for each in value]
            value = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
            found.append(("ranks by host", plain(value)))
        elif name == "command" and isinstance(value, list):
            found.append((name, " ".join(map(str, value))))
        elif value is not None:
            found.append((name, plain(value)))
    return found

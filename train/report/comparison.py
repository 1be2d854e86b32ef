"""Gather what the page that compares runs shows: results, settings that differ, curves, waits, bytes and memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etl import __version__
from etl.errors import UsageError
from etl.report.charts import RUN_COLORS, Chart, Curve, line_chart
from etl.report.render import UNKNOWN, count, short
from etl.stages.summary import text_of
from etl.storage.place import Place
from train.report.metrics import OWN, Metrics, Series, part_times, smooth, usage_by_rank
from train.report.run_files import RunFiles
from train.report.run_page import MAX_RANKS, best_epoch, ranks_of, steps_done, why_stopped
from train.report.text import accuracy, duration, loss, speed

Facts = dict[str, Any]


@dataclass(frozen=True)
class ComparedRun:
    """A run by the ``label`` and the ``color`` that the page has for it."""

    label: str
    color: str
    files: RunFiles

    @property
    def metrics(self) -> Metrics:
        """The metrics of the run."""
        return self.files.metrics


def gather_comparison(files: Sequence[RunFiles]) -> Facts:
    """What the template needs. Raises UsageError if a run has no metrics of steps."""
    for run in files:
        if not run.metrics.steps.num_rows:
            raise UsageError(f"{run.folder} has no metrics of steps, so it cannot be compared. Leave it out")
    labels = labels_of([run.folder for run in files])
    runs = [
        ComparedRun(label, RUN_COLORS[number % len(RUN_COLORS)], run)
        for number, (label, run) in enumerate(zip(labels, files, strict=True))
    ]
    usage = [(run, usage_by_rank(run.metrics)) for run in runs]
    times = [[part for part in part_times(run.metrics) if part.part != OWN] for run in runs]
    medians = [float(np.median(run.metrics.over_ranks("step_s"))) for run in runs]
    return {
        "name": f"{len(runs)} runs",
        "root": ", ".join(run.folder.uri for run in files),
        "version": __version__,
        "runs": runs,
        "results": [(run, result_of(run.files)) for run in runs],
        "differences": differences(files),
        "charts": charts(runs),
        "waits": list(zip(runs, times, medians, strict=True)),
        "parts_of_a_step": [part.part for part in times[0]],
        "usage": [(run, own[:MAX_RANKS]) for run, own in usage if own],
        "hidden_ranks": [(run.label, len(own) - MAX_RANKS) for run, own in usage if len(own) > MAX_RANKS],
        "without_usage": [run.label for run, own in usage if not own],
    }


def labels_of(folders: Sequence[Place]) -> list[str]:
    """The names of the runs, with the names of their roots if these differ; the whole URIs if these are equal, too."""
    names = [folder.name for folder in folders]
    for labels in (names, [f"{folder.parent.parent.name}/{folder.name}" for folder in folders]):
        if len(set(labels)) == len(labels):
            return labels
    return [folder.uri for folder in folders]


def result_of(run: RunFiles) -> list[str]:
    """The cells of a run's row."""
    final = run.result["result"] if run.result else {}
    best = best_epoch(run.epochs)
    return [
        f"finished: {why_stopped(run)}" if run.result else "not finished",
        accuracy(final.get("test_accuracy")),
        loss(final.get("test_loss")),
        f"{accuracy(best[1])} ({best[0]}, epoch {best[2]})" if best else UNKNOWN,
        count(len(run.epochs)),
        count(steps_done(run)),
        ranks_of(run),
        speed(run.metrics.images_per_s),
        duration(float(run.metrics.end_s[-1])),
    ]


def differences(runs: Sequence[RunFiles]) -> list[tuple[str, list[str]]]:
    """The settings that are not the same in all runs: the name, and what each run has."""
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for own in settings for name in own)
    rows = [(name, [own.get(name, UNKNOWN) for own in settings]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def settings_of(run: RunFiles) -> dict[str, str]:
    """How the run was trained, in words. What is recorded at the end is missing in a run that is not finished."""
    result, record = run.result or {}, run.record
    hosts = {str(rank.get("host")) for rank in record.get("ranks", ())}
    facts = {
        "root": run.folder.parent.parent.uri,
        "slices": short(str(result["slices"])) if "slices" in result else None,
        "framework": result.get("framework"),
        "strategy": record.get("strategy"),
        "ranks": ranks_of(run),
        "replicas": record.get("replicas"),
        "hosts": len(hosts) or None,
        **run.settings,
        **{f"version of {name}": version for name, version in record.get("versions", {}).items()},
        "python": record.get("python"),
    }
    return {name: text_of(value) for name, value in facts.items() if value is not None}


def charts(runs: Sequence[ComparedRun]) -> list[Chart]:
    """Loss and accuracy by step and by time, of the training and of each evaluation; images a second by step."""
    drawn = []
    for name, wording in (("loss", loss), ("accuracy", accuracy)):
        for source, points_of in (("training", training), ("validation", evaluations), ("test", evaluations)):
            points = [points_of(run.metrics, f"{source}_{name}") for run in runs]
            if any(len(values) for _, _, values in points):
                title = f"{source} {name} by".capitalize()
                by_step = [(steps, values) for steps, _, values in points]
                by_time = [(end_s, values) for _, end_s, values in points]
                drawn.append(compare(f"{title} step", "step", runs, by_step, wording))
                drawn.append(compare(f"{title} time", "seconds since the first step began", runs, by_time, wording))
    speeds = [(run.metrics.column("step"), smooth_speed(run.metrics)) for run in runs]
    return [*drawn, compare("Images per second by step", "step", runs, speeds, speed)]


def training(metrics: Metrics, name: str) -> tuple[Series, Series, Series]:
    """Of each step: its number, when it ended, and the moving mean of its loss or accuracy."""
    return metrics.column("step"), metrics.end_s, smooth(metrics.column(name.removeprefix("training_")))


def evaluations(metrics: Metrics, name: str) -> tuple[Series, Series, Series]:
    """Of each epoch that has ``name``: its last step, when that ended, and the value."""
    epochs = [epoch for epoch in metrics.epochs if name in epoch]
    steps, values = (np.array([epoch[each] for epoch in epochs], np.float64) for each in ("step", name))
    return steps, np.interp(steps, metrics.column("step"), metrics.end_s), values


def smooth_speed(metrics: Metrics) -> Series:
    """Images per second of the last steps, at each."""
    return smooth(metrics.column("examples")) / np.maximum(smooth(metrics.over_ranks("step_s")), 1e-9)


def compare(
    title: str,
    x_label: str,
    runs: Sequence[ComparedRun],
    points: Sequence[tuple[Series, Series]],
    wording: Callable[[float], str],
) -> Chart:
    """A curve for each run that has points (x, y)."""
    curves = [Curve(run.label, *own, run.color) for run, own in zip(runs, points, strict=True) if len(own[0])]
    return line_chart(title, x_label, curves, wording, is_share=wording is accuracy)

"""The page that compares training runs: curves by step and by time, waits, bytes and memory, settings that differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from etl import __version__
from etl.errors import UsageError
from etl.report.charts import RUN_COLORS, Chart, Curve, line_chart
from etl.report.render import check_target, folders_around, publish
from etl.report.run.curves import from_to
from etl.report.run.files import RunFiles, is_run, read_run
from etl.report.run.metrics import OTHER, PARTS, STEP_S, Metrics, Series, smooth
from etl.report.run.page import MAX_RANKS, best_epoch, ranks_of, steps_done, why_stopped
from etl.report.run.waits import RankUsage, part_times, usage_by_rank
from etl.report.text import UNKNOWN, accuracy, count, duration, loss, plain, short, speed
from etl.stages.summary import Summary
from etl.storage.place import Place

EVALUATED = ("validation", "test")
WORDINGS = {"loss": loss, "accuracy": accuracy}

Wording = Callable[[float], str]
Facts = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A run by the ``label`` and the ``color`` that the page has for it."""

    label: str
    color: str
    files: RunFiles

    @property
    def metrics(self) -> Metrics:
        return self.files.metrics

    @property
    def images_per_s(self) -> float:
        """Of the median step."""
        return float(np.median(self.metrics.column("examples") / np.maximum(self.metrics.over_ranks(STEP_S), 1e-9)))


def write_comparison(folders: Sequence[Place], file: Place) -> Summary:
    """Write the page that compares the runs in ``folders`` to ``file``; one that is there is replaced.

    Raises UsageError if one is not a run with metrics, is given twice, or ``file`` cannot be a report's; DataError if a
    file of a run is damaged.
    """
    check_target(file, [each for folder in folders for each in folders_around(folder)])
    runs = read_runs(folders)
    size_bytes = publish("compare.html", gather_comparison(runs), file)
    return Summary("report", file.uri, False, {"runs": [folder.uri for folder in folders], "bytes": size_bytes})


def read_runs(folders: Sequence[Place]) -> list[Trained]:
    """The runs in their order. Raises UsageError if one cannot be compared."""
    seen = set()
    for folder in folders:
        if not is_run(folder):
            raise UsageError(f"{folder} is not the folder of a run (no metrics, no result.json). Give ROOT/runs/NAME")
        if folder.real_path in seen:
            raise UsageError(f"{folder} is given twice. Give each run once")
        seen.add(folder.real_path)
    runs = [read_run(folder) for folder in folders]
    for run in runs:
        if not run.metrics.steps.num_rows:
            raise UsageError(f"{run.folder} has no metrics of steps, so it cannot be compared. Leave it out")
    colors = [RUN_COLORS[number % len(RUN_COLORS)] for number in range(len(runs))]
    return [Trained(*each) for each in zip(labels_of(folders), colors, runs, strict=True)]


def labels_of(folders: Sequence[Place]) -> list[str]:
    """The names of the runs, with the names of their roots if these differ; the whole URIs if these are equal, too."""
    names = [folder.name for folder in folders]
    for labels in (names, [f"{folder.parent.parent.name}/{folder.name}" for folder in folders]):
        if len(set(labels)) == len(labels):
            return labels
    return [folder.uri for folder in folders]


def gather_comparison(runs: Sequence[Trained]) -> Facts:
    """What the template needs; pure."""
    usage = [(run, usage_by_rank(run.metrics)) for run in runs]
    return {
        "name": f"{len(runs)} runs",
        "root": ", ".join(run.files.folder.uri for run in runs),
        "version": __version__,
        "runs": runs,
        "results": [(run, result_of(run)) for run in runs],
        "differences": differences(runs),
        "charts": curves(runs),
        "waits": [(run, part_times(run.metrics)[: len(PARTS) + 1], median_step_s(run)) for run in runs],
        "parts_of_a_step": [*PARTS, OTHER],
        "usage": [(run, usage_rows(own)) for run, own in usage if own],
        "without_usage": [run.label for run, own in usage if not own],
    }


def result_of(run: Trained) -> list[str]:
    """The cells of a run's row."""
    files, result = run.files, run.files.result or {}
    final, best = result.get("result", {}), best_epoch(files.epochs)
    return [
        f"finished: {why_stopped(files)}" if files.result else "not finished",
        accuracy(final.get("test_accuracy")),
        loss(final.get("test_loss")),
        f"{accuracy(best[1])} ({best[0]}, epoch {best[2]})" if best else UNKNOWN,
        count(len(files.epochs)),
        count(steps_done(files)),
        ranks_of(files),
        speed(run.images_per_s),
        duration(float(run.metrics.seconds[-1])),
    ]


def differences(runs: Sequence[Trained]) -> list[tuple[str, list[str]]]:
    """The settings that are not the same in all runs: the name, and what each run has."""
    settings = [settings_of(run.files) for run in runs]
    names = dict.fromkeys(name for own in settings for name in own)
    rows = [(name, [own.get(name, UNKNOWN) for own in settings]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def settings_of(run: RunFiles) -> dict[str, str]:
    """How the run was trained, in words. What is known at the end only is lacking in a run that is not finished."""
    result, record = run.result or {}, run.record
    hosts = {str(each.get("host")) for each in record.get("ranks", ()) if isinstance(each, Mapping)}
    facts = {
        "root": run.folder.parent.parent.uri,
        "slices": short(str(result["slices"])) if "slices" in result else None,
        "framework": result.get("framework"),
        "strategy": record.get("strategy"),
        "ranks": ranks_of(run),
        "replicas": record.get("replicas"),
        "hosts": len(hosts) or None,
        **run.recipe_or_settings,
        **{f"version of {name}": version for name, version in record.get("versions", {}).items()},
        "python": record.get("python"),
    }
    return {name: plain(value) for name, value in facts.items() if value is not None}


def usage_rows(ranks: Sequence[RankUsage]) -> list[tuple[str, int, int, int]]:
    """(rank or "mean", bytes sent and received in a step, peak memory); of many ranks only the first."""
    rows = [(str(each.rank), each.sent, each.received, each.peak_memory) for each in ranks]
    if len(rows) == 1:
        return rows
    sent, received, memory = (round(fmean(own)) for own in list(zip(*rows, strict=True))[1:])
    return [("mean", sent, received, memory), *rows[:MAX_RANKS]]


def curves(runs: Sequence[Trained]) -> list[Chart]:
    """Loss and accuracy by step and by time, of the training and of each evaluation; images a second."""
    drawn = []
    x_labels = {"step": "step", "time": "seconds since the first step began"}
    for name, wording in WORDINGS.items():
        for source in ("training", *EVALUATED):
            points = [
                training(run, name) if source == "training" else evaluations(run, f"{source}_{name}") for run in runs
            ]
            for number, (by, x_label) in enumerate(x_labels.items()):
                own = [(each[number], each[2]) for each in points]
                if any(len(x) for x, _ in own):
                    drawn.append(compare(f"{source} {name} by {by}".capitalize(), x_label, runs, own, wording))
    speeds = [(run.metrics.column("step"), smooth_speed(run.metrics)) for run in runs]
    return [*drawn, compare("Images per second by step", "step", runs, speeds, speed)]


def training(run: Trained, name: str) -> tuple[Series, Series, Series]:
    """Of each step: its number, when it was over, and a mean of the last steps."""
    return run.metrics.column("step"), run.metrics.seconds, smooth(run.metrics.column(name))


def evaluations(run: Trained, name: str) -> tuple[Series, Series, Series]:
    """Of each epoch that has ``name``: its last step, when that was over, and the value."""
    epochs = [epoch for epoch in run.metrics.epochs if name in epoch]
    steps, values = (np.array([epoch[each] for epoch in epochs], np.float64) for each in ("step", name))
    return steps, np.interp(steps, run.metrics.column("step"), run.metrics.seconds), values


def smooth_speed(metrics: Metrics) -> Series:
    """Images per second of the last steps, at each."""
    return smooth(metrics.column("examples")) / np.maximum(smooth(metrics.over_ranks(STEP_S)), 1e-9)


def median_step_s(run: Trained) -> float:
    return float(np.median(run.metrics.over_ranks(STEP_S)))


def compare(
    title: str, x_label: str, runs: Sequence[Trained], points: Sequence[tuple[Series, Series]], wording: Wording
) -> Chart:
    """A curve for each run that has points (x, y)."""
    drawn = [(run, Curve(run.label, *own, run.color)) for run, own in zip(runs, points, strict=True) if len(own[0])]
    caption = "; ".join(f"{run.label}: {from_to(curve.y, wording)}" for run, curve in drawn)
    return line_chart(title, x_label, [curve for _, curve in drawn], f"{caption}.", is_share=wording is accuracy)

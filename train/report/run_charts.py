"""The charts of a run's page."""

from collections.abc import Callable, Sequence

import numpy as np

from etl.partition.config import SPLIT_NAMES
from etl.report.charts import HALF, INK, Cells, Chart, Curve, first_and_last, heatmap, line_chart
from etl.report.render import percent
from train.report.metrics import Epoch, Metrics, shares_of, smooth
from train.report.text import accuracy, loss, speed
from train.runs.confusion import Confusion

PART_COLORS = {"input": "#d9932b", "compute": "#3266c4", "all-reduce": "#2a9d8f", "other": "#b4bcc7"}
PALE = "#b9cbeb"


def epoch_charts(epochs: Sequence[Epoch]) -> list[Chart]:
    """Loss and accuracy of each split, and images per second, by epoch."""
    drawn = [
        _by_epoch("Loss by epoch", epochs, {split: f"{split}_loss" for split in SPLIT_NAMES}, loss),
        _by_epoch("Accuracy by epoch", epochs, {split: f"{split}_accuracy" for split in SPLIT_NAMES}, accuracy),
        _by_epoch("Images per second", epochs, {"all ranks": "images_per_s"}, speed),
    ]
    return [chart for chart in drawn if chart]


def _by_epoch(
    title: str, epochs: Sequence[Epoch], names: dict[str, str], wording: Callable[[float], str]
) -> Chart | None:
    """A curve for each of the metrics ``names`` that is there, by its label; None if there is none."""
    numbers = np.array([epoch["epoch"] for epoch in epochs], np.float64)
    series = {label: np.array([epoch.get(name, np.nan) for epoch in epochs]) for label, name in names.items()}
    curves = [Curve(label, numbers, values) for label, values in series.items() if np.isfinite(values).any()]
    is_share, from_zero = wording is accuracy, wording is speed
    return line_chart(title, "epoch", curves, wording, is_share=is_share, from_zero=from_zero) if curves else None


def step_charts(metrics: Metrics) -> list[Chart]:
    """The loss of each step with its moving mean, and the learning rate."""
    steps, losses, rates = (metrics.column(name) for name in ("step", "loss", "rate"))
    drawn = []
    if np.isfinite(losses).any():
        curves = [
            Curve("each step", steps, losses, PALE, 0.7),
            Curve("mean", steps, smooth(losses)),
        ]
        caption = f"Means over the last fiftieth of all steps (dark): {first_and_last(smooth(losses), loss)}."
        if lacking := int(np.isnan(losses).sum()):
            caption += f" {lacking:,} steps without a finite loss are left out."
        drawn.append(line_chart("Training loss by step", "step", curves, caption, width=HALF))
    if np.isfinite(rates).any():
        caption = f"At most {np.nanmax(rates):.4g}, {rates[np.isfinite(rates)][-1]:.4g} at the end."
        curve = Curve("rate", steps, rates, INK)
        drawn.append(line_chart("Learning rate by step", "step", [curve], caption, from_zero=True))
    return drawn


def wait_chart(metrics: Metrics) -> Chart:
    """The share of each part in the time of all ranks, by step."""
    steps, ranks = metrics.column("step"), metrics.column("ranks")
    seconds = {part: smooth(own * ranks) for part, own in metrics.parts_s.items()}
    total = np.maximum(sum(seconds.values()), 1e-12)
    curves = [Curve(part, steps, own / total, PART_COLORS[part]) for part, own in seconds.items()]
    overall = ", ".join(f"{part} {percent(share)}" for part, share in shares_of(metrics).items())
    caption = f"All ranks together, means of the last fiftieth of all steps; in all {overall}."
    title = "Where the time goes, by step"
    return line_chart(title, "step", curves, caption, is_share=True, from_zero=True, width=HALF)


def confusion_map(confusion: Confusion, summary: str) -> Chart:
    """True classes (rows) by predicted ones; the colour is the share of the true class."""
    counts, names = confusion.counts, confusion.classes
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    caption = f"True classes (rows), predicted ones (columns); colour: share of the true class. {summary}"
    return heatmap("Confusion matrix", ("predicted", "true"), Cells(shares, names, names, counts), caption)

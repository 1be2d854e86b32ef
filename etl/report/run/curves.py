"""The charts of a run's page."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.ticker import PercentFormatter

from etl.report.charts import HALF, INK, SPLIT_COLORS, Cells, Chart, Curve, heatmap, line_chart
from etl.report.run.files import Confusion
from etl.report.run.metrics import OTHER, PARTS, Epoch, Metrics, Series, smooth
from etl.report.run.waits import share_curves, shares_of
from etl.report.text import UNKNOWN, accuracy, loss, percent, speed

PART_COLORS = dict(zip((*PARTS, OTHER), ("#d9932b", "#3266c4", "#2a9d8f", "#b4bcc7"), strict=True))
PALE = "#b9cbeb"
SPLITS = ("train", "validation", "test")


def epoch_charts(epochs: Sequence[Epoch]) -> list[Chart]:
    """Loss and accuracy of each split, and images per second, by epoch."""
    numbers = _column(epochs, "epoch")
    drawn = []
    for what, wording in (("loss", loss), ("accuracy", accuracy)):
        series = {split: _column(epochs, f"{split}_{what}") for split in SPLITS}
        series = {split: values for split, values in series.items() if np.isfinite(values).any()}
        curves = [Curve(split, numbers, values, SPLIT_COLORS[split]) for split, values in series.items()]
        caption = "; ".join(f"{split}: {from_to(values, wording)}" for split, values in series.items())
        if curves:
            title = f"{what.capitalize()} by epoch"
            drawn.append(line_chart(title, "epoch", curves, f"{caption}.", is_share=what == "accuracy"))
    speeds = _column(epochs, "images_per_s")
    if np.isfinite(speeds).any():
        curve = Curve("images/s", numbers, speeds, SPLIT_COLORS["train"])
        caption = f"{from_to(speeds, speed)} images/s, all ranks together."
        drawn.append(line_chart("Images per second", "epoch", [curve], caption, from_zero=True))
    return drawn


def step_charts(metrics: Metrics) -> list[Chart]:
    """The loss of each step with a mean of the last ones, and the learning rate."""
    steps, losses, rates = (metrics.column(name) for name in ("step", "loss", "rate"))
    drawn = []
    if np.isfinite(losses).any():
        curves = [
            Curve("each step", steps, losses, PALE, 0.7),
            Curve("mean", steps, smooth(losses), SPLIT_COLORS["train"]),
        ]
        least, most = np.nanargmin(losses), np.nanargmax(losses)
        caption = (
            f"Least {loss(losses[least])} at step {steps[least]:,.0f},"
            f" largest {loss(losses[most])} at step {steps[most]:,.0f}."
        )
        caption += " Dark: means over the last fiftieth of all steps."
        lacking = int(np.isnan(losses).sum())
        gaps = f" {lacking:,} steps without a finite loss are left out." if lacking else ""
        drawn.append(line_chart("Training loss by step", "step", curves, caption + gaps, width=HALF))
    if np.isfinite(rates).any():
        caption = f"At most {np.nanmax(rates):.4g}, {rates[np.isfinite(rates)][-1]:.4g} at the end."
        curve = Curve("rate", steps, rates, INK)
        drawn.append(line_chart("Learning rate by step", "step", [curve], caption, from_zero=True))
    return drawn


def wait_chart(metrics: Metrics) -> Chart:
    """The share of each part in the time of all ranks, by step."""
    steps = metrics.column("step")
    curves = [Curve(part, steps, shares, PART_COLORS[part]) for part, shares in share_curves(metrics).items()]
    overall = ", ".join(f"{part} {percent(share)}" for part, share in zip(PART_COLORS, shares_of(metrics), strict=True))
    caption = f"All ranks together, means of the last fiftieth of all steps; in all {overall}."
    title = "Where the time goes, by step"
    return line_chart(title, "step", curves, caption, is_share=True, from_zero=True, width=HALF)


def confusion_map(confusion: Confusion, summary: str) -> Chart:
    """True classes (rows) by predicted ones; the colour is the share of the true class."""
    counts, names = confusion.counts, confusion.classes
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cells = Cells(shares, names, names, counts, scale=PowerNorm(0.5, 0, 1), wording=PercentFormatter(1))
    caption = f"True classes (rows), predicted ones (columns); colour: share of the true class. {summary}"
    return heatmap("Confusion matrix", ("predicted", "true"), cells, caption)


def from_to(values: Series, wording: Callable[[float], str]) -> str:
    """The first and the last value in words."""
    known = values[np.isfinite(values)]
    if not len(known):
        return UNKNOWN
    first, last = wording(known[0]), wording(known[-1])
    return first if len(known) == 1 else f"{first} to {last}"


def _column(epochs: Sequence[Mapping[str, float]], name: str) -> Series:
    return np.array([epoch.get(name, np.nan) for epoch in epochs], np.float64)

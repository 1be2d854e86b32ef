"""The drawings of a run's page. Lines have the id of what they show, so that a program finds their points."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.ticker import MaxNLocator, PercentFormatter

from etl.report.drawing import (
    BLUES,
    HALF,
    HEIGHT,
    INK,
    NARROW,
    SPLIT_COLORS,
    Chart,
    Drawing,
    drawing,
    in_thousands,
    shortened,
)
from etl.report.run.curves import Series, extreme_positions, trailing_mean
from etl.report.run.files import Confusion
from etl.report.run.metrics import PARTS
from etl.report.text import UNKNOWN, accuracy, percent, speed
from etl.report.text import loss as loss_text

PART_COLORS = dict(zip(PARTS, ("#d9932b", "#3266c4", "#2a9d8f", "#b4bcc7"), strict=True))
MOST_NUMBERED = 20  # classes of a matrix whose numbers can be read
MOST_NAMED = 60  # classes whose names can be read
NARROW_CLASSES = 12
SMOOTHED_OVER = 50  # the window is so small a part of all steps
FEW_POINTS = 30  # that are marked


def epoch_curves(epochs: Series, series: Mapping[str, Series], what: str) -> Chart:
    """``what`` ("loss" or "accuracy") by epoch; ``series`` by split, NaN where it is not known."""
    wording = loss_text if what == "loss" else accuracy
    with drawing() as drawn:
        for split, values in series.items():
            _line(drawn.axes, epochs, values, f"{split}-{what}", label=split, color=SPLIT_COLORS.get(split, INK))
        if what == "accuracy":
            drawn.axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
        _finish_axes(drawn, "epoch")
        drawn.figure.legend(loc="outside upper left", ncols=3, handlelength=1.2, columnspacing=1.2)
        told = "; ".join(f"{split}: {from_to(values, wording)}" for split, values in series.items())
        return drawn.finish(f"{what.capitalize()} by epoch", f"{told}.", f"{what} by epoch, {told}")


def speed_curve(epochs: Series, images_per_s: Series) -> Chart:
    """Images a second, of all ranks together, by epoch."""
    with drawing() as drawn:
        _line(drawn.axes, epochs, images_per_s, "images-per-s", color=SPLIT_COLORS["train"])
        drawn.axes.set_ylim(0, float(np.nanmax(images_per_s)) * 1.08 or 1)
        in_thousands(drawn.axes.yaxis)
        _finish_axes(drawn, "epoch")
        told = f"{from_to(images_per_s, speed)} images/s, all ranks together."
        return drawn.finish("Images per second", told, f"images per second by epoch, {told}")


def step_curve(steps: Series, values: Series, what: str) -> Chart:
    """The loss of each step, its extremes kept, with a mean over the last steps."""
    window = max(1, len(values) // SMOOTHED_OVER)
    shown, smooth = extreme_positions(values), trailing_mean(values, window)
    points = extreme_positions(smooth)
    with drawing(HALF) as drawn:
        axes = drawn.axes
        (pale,) = axes.plot(steps[shown], values[shown], color="#b9cbeb", linewidth=0.7)
        pale.set_gid(f"step-{what}")
        (strong,) = axes.plot(steps[points], smooth[points], color=SPLIT_COLORS["train"], linewidth=1.4)
        strong.set_gid(f"step-{what}-smoothed")
        _finish_axes(drawn, "step")
        in_thousands(axes.xaxis)
        least, most = np.nanargmin(values), np.nanargmax(values)
        told = (
            f"Least {loss_text(values[least])} at step {steps[least]:,.0f},"
            f" largest {loss_text(values[most])} at step {steps[most]:,.0f}."
        )
        over = f" Dark: the mean of the last {window:,} steps." if window > 1 else ""
        lacking = int(np.isnan(values).sum())
        gaps = f" {lacking:,} steps without a finite {what} are left out." if lacking else ""
        return drawn.finish(f"Training {what} by step", f"{told}{over}{gaps}", f"training {what} by step. {told}")


def rate_curve(steps: Series, rates: Series) -> Chart:
    """The learning rate of each step."""
    shown = extreme_positions(rates)
    with drawing() as drawn:
        (line,) = drawn.axes.plot(steps[shown], rates[shown], color=INK, linewidth=1.2)
        line.set_gid("rate")
        drawn.axes.set_ylim(0, float(np.nanmax(rates)) * 1.08 or 1)
        _finish_axes(drawn, "step")
        in_thousands(drawn.axes.xaxis)
        drawn.axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        told = f"At most {np.nanmax(rates):.4g}, {rates[shown[-1]]:.4g} at the end."
        return drawn.finish("Learning rate by step", told, f"learning rate by step. {told}")


def share_areas(steps: Series, shares: Series, overall: Series) -> Chart:
    """What the time of all ranks went to, by step: ``shares`` of shape (`PARTS`, steps), ``overall`` over all steps."""
    with drawing(HALF) as drawn:
        colors = [PART_COLORS[part] for part in PARTS]
        areas = drawn.axes.stackplot(steps, shares, colors=colors, labels=PARTS, linewidth=0)
        for part, area in zip(PARTS, areas, strict=True):
            area.set_gid(f"share-{part}")
        drawn.axes.set(xlabel="step", ylim=(0, 1), xlim=(steps[0], max(steps[-1], steps[0] + 1)))
        drawn.axes.yaxis.set_major_formatter(PercentFormatter(1))
        drawn.axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        in_thousands(drawn.axes.xaxis)
        _name_parts(drawn)
        told = ", ".join(f"{part} {percent(share)}" for part, share in zip(PARTS, overall, strict=True))
        caption = f"All ranks together; in all {told}."
        return drawn.finish("Where the time goes, by step", caption, f"shares of time by step; in all {told}")


def confusion_map(confusion: Confusion, correct: int, examples: int) -> Chart:
    """True classes (rows) by predicted ones; the colour is the share of the true class."""
    counts, names = confusion.counts, confusion.classes
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    number = len(names)
    width = NARROW if number <= NARROW_CLASSES else HALF
    height = max(HEIGHT, 0.9 + 0.23 * number) if number <= MOST_NUMBERED else 6.6
    with drawing(width, height) as drawn:
        axes, norm = drawn.axes, PowerNorm(0.5, 0, 1)
        shown: ScalarMappable
        if number <= MOST_NUMBERED:
            shown = axes.pcolormesh(shares, cmap=BLUES, norm=norm, edgecolors="white", linewidth=0.6)
            axes.invert_yaxis()
            for (row, column), count in np.ndenumerate(counts):
                color = "white" if shares[row, column] > 0.35 else INK
                text = f"{count:,}" if 0 < count < 100_000 else f"{count / 1000:,.0f}k" if count else ""
                size = 7 if counts.max() < 1000 else 5.5
                axes.text(column + 0.5, row + 0.52, text, ha="center", va="center", fontsize=size, color=color)
        else:
            shown = axes.imshow(
                shares, cmap=BLUES, norm=norm, interpolation="none", extent=(0, number, number, 0), aspect="auto"
            )
        if number <= MOST_NAMED:
            labels = [shortened(name, 20) for name in names]
            axes.set_xticks(np.arange(number) + 0.5, labels, rotation=0 if max(map(len, labels)) <= 3 else 90)
            axes.set_yticks(np.arange(number) + 0.5, labels)
        axes.tick_params(length=0, labelsize=7)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="predicted", ylabel="true")
        bar = drawn.figure.colorbar(shown, ax=axes, pad=0.02, aspect=30, format=PercentFormatter(1))
        bar.outline.set_visible(False)
        told = f"{correct:,} of {examples:,} examples of {confusion.split} are on the diagonal: known as what they are."
        caption = f"True classes (rows), predicted ones (columns); colour: share of the true class. {told}"
        return drawn.finish("Confusion matrix", caption, f"confusion matrix of {number:,} classes: {told}")


def _line(axes: Axes, x: Series, y: Series, gid: str, **style: Any) -> None:
    known = ~np.isnan(y)
    marker = "o" if known.sum() <= FEW_POINTS else ""
    (line,) = axes.plot(x[known], y[known], marker=marker, markersize=3, linewidth=1.4, **style)
    line.set_gid(gid)


def _finish_axes(drawn: Drawing, x: str) -> None:
    drawn.axes.set_xlabel(x)
    drawn.axes.margins(x=0.02)
    left, right = drawn.axes.dataLim.intervalx
    if left == right:  # one point stands in the middle
        drawn.axes.set_xlim(left - 1, right + 1)
    drawn.axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    drawn.axes.grid(axis="y")


def _name_parts(drawn: Drawing) -> None:
    drawn.figure.legend(loc="outside upper left", ncols=4, handlelength=0.9, columnspacing=1.1)


def from_to(values: Series, wording: Callable[[float], str]) -> str:
    known = values[~np.isnan(values)]
    if not len(known):
        return UNKNOWN
    first, last = wording(known[0]), wording(known[-1])
    return first if len(known) == 1 else f"{first} to {last}"

"""The drawings of a page of slices."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.ticker import MaxNLocator

from etl.report.dataset.sources import BINS_PER_OCTAVE
from etl.report.drawing import (
    BLUES,
    FAINT,
    HALF,
    HEIGHT,
    INK,
    NARROW,
    SPLIT_COLORS,
    WHOLE,
    Chart,
    drawing,
    in_thousands,
    shortened,
)
from etl.report.text import pixels

Counts = npt.NDArray[np.int64]

MOST_BARS = 12
MOST_NUMBERED = 12  # slices of a map whose numbers can be read
_AROUND = LinearSegmentedColormap.from_list("around", ["#2a7f8f", "#b9dde0", "#f4f5f7", "#f3cfa6", "#c4602b"])


def class_curve(totals: Sequence[int]) -> Chart:
    """Examples of every class, from the largest to the smallest."""
    ordered = np.sort(np.asarray(totals))[::-1]
    with drawing() as drawn:
        axes = drawn.axes
        axes.fill_between(np.arange(1, len(ordered) + 1), ordered, step="mid", color=SPLIT_COLORS["train"], alpha=0.85)
        axes.set(xlabel="classes, largest first", ylabel="examples", ylim=(0, None), xlim=(0.5, len(ordered) + 0.5))
        axes.grid(axis="y")
        in_thousands(axes.yaxis)
        alt = f"{len(ordered)} classes, from {ordered[0]:,} to {ordered[-1]:,} examples"
        return drawn.finish("All classes by size", "Examples of each class, from the largest to the smallest.", alt)


def class_map(matrix: Counts, classes: Sequence[str], slices: Sequence[tuple[str, str]]) -> Chart:
    """Examples by class and slice: ``matrix`` of shape (classes, slices); ``slices`` are (split, name).

    The colour is the distance from the class's mean over the slices of the split.
    """
    starts = [number for number, (split, _) in enumerate(slices) if number == 0 or slices[number - 1][0] != split]
    ends = [*starts[1:], len(slices)]
    spans = list(zip(starts, ends, strict=True))
    above = np.concatenate([matrix[:, a:b] - matrix[:, a:b].mean(axis=1, keepdims=True) for a, b in spans], axis=1)
    limit = max(2.0, float(np.abs(above).max(initial=0)))
    width = NARROW if len(slices) <= MOST_NUMBERED else HALF if len(slices) <= 2 * MOST_NUMBERED else WHOLE
    with drawing(width, max(HEIGHT, 0.9 + 0.17 * len(classes))) as drawn:
        axes = drawn.axes
        mesh = axes.pcolormesh(above, cmap=_AROUND, vmin=-limit, vmax=limit, edgecolors="white", linewidth=0.6)
        axes.invert_yaxis()
        axes.set_yticks(np.arange(len(classes)) + 0.5, [shortened(name) for name in classes])
        axes.set_xticks([(start + end) / 2 for start, end in spans], [slices[start][0] for start in starts])
        for tick, (start, end) in zip(axes.get_xticklabels(), spans, strict=True):
            tick.set_rotation(0 if end - start > 3 else 90)
        for start in starts[1:]:
            axes.axvline(start, color=INK, linewidth=1)
        if len(slices) <= MOST_NUMBERED and matrix.max(initial=0) < 10_000:
            size = 6.5 if matrix.max(initial=0) < 1000 else 5.5
            for (row, column), count in np.ndenumerate(matrix):
                axes.text(column + 0.5, row + 0.52, str(count), ha="center", va="center", fontsize=size)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        bar = drawn.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=30)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        caption = "Each class (rows) on each slice (columns): examples above or below the class's mean in the split."
        return drawn.finish("Classes on slices", caption, f"{len(classes)} classes on {len(slices)} slices")


def slice_bars(values: Sequence[int], splits: Sequence[str], what: str) -> Chart:
    """``values`` of each slice as bars, coloured by split; one tick a split."""
    unit, name = _unit(values) if what == "bytes" else (1, "examples")
    with drawing() as drawn:
        axes = drawn.axes
        for split in dict.fromkeys(splits):
            own = [number for number, each in enumerate(splits) if each == split]
            heights = [values[number] / unit for number in own]
            axes.bar(own, heights, color=SPLIT_COLORS.get(split, INK), width=0.86, label=split)
        axes.set(xlabel="slice", ylabel=name)
        axes.set_xticks([])
        axes.grid(axis="y")
        if max(values, default=0) >= 10 * unit:
            in_thousands(axes.yaxis)
        drawn.figure.legend(loc="outside upper left", ncols=3, handlelength=0.9, columnspacing=1.2)
        alt = f"{what} per slice, from {min(values):,} to {max(values):,}"
        return drawn.finish(f"{what.capitalize()} per slice", f"{what.capitalize()} of each slice, in order.", alt)


def slice_histogram(values: Sequence[int], split: str, what: str) -> Chart:
    """How many slices of a split have how many examples or bytes."""
    unit, name = _unit(values) if what == "bytes" else (1, "examples")
    numbers = np.asarray(values) / unit
    with drawing() as drawn:
        axes = drawn.axes
        distinct = np.unique(values)
        if unit == 1 and len(distinct) <= MOST_BARS:
            counts = [int((numbers == value).sum()) for value in distinct]
            _bar_each(axes, distinct, counts, split)
        else:
            axes.hist(numbers, bins=30, color=SPLIT_COLORS.get(split, INK))
            axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set(xlabel=f"{name} per slice", ylabel="slices")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y")
        in_thousands(axes.yaxis)
        alt = f"{len(values):,} slices of {split}, from {min(values):,} to {max(values):,} {what}"
        caption = f"How many of the {len(values):,} slices have so many {what}."
        return drawn.finish(f"{split}: {what} per slice", caption, alt)


def _bar_each(axes: Axes, values: Counts, counts: Any, split: str) -> None:
    axes.bar([f"{value:,}" for value in values], counts, color=SPLIT_COLORS.get(split, INK), width=0.7)
    spare = max(0, 3 - len(values)) / 2  # so that one bar is no wall
    axes.set_xlim(-0.5 - spare, len(values) - 0.5 + spare)


def difference_histogram(differences: Counts, split: str) -> Chart:
    """How many classes differ by how many examples between two slices of a split: int64 of shape (classes,)."""
    with drawing() as drawn:
        axes = drawn.axes
        distinct, counts = np.unique(differences, return_counts=True)
        if len(distinct) <= MOST_BARS:
            _bar_each(axes, distinct, counts, split)
        else:
            axes.hist(differences, bins=30, color=SPLIT_COLORS.get(split, INK))
        axes.set(xlabel="most less least on any slice, examples", ylabel="classes")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y")
        alt = f"largest difference of a class between two slices: {int(differences.max(initial=0)):,} examples"
        caption = "How many classes differ by so many examples between two slices."
        return drawn.finish(f"{split}: spread of classes", caption, alt)


def size_map(grid: Counts, target: tuple[int, int]) -> Chart:
    """Source images by width and height: counts of shape (widths, heights), steps of a part of an octave."""
    there = np.argwhere(grid)
    first, last = there.min(axis=0).min() - 1, there.max(axis=0).max() + 2
    edges = 2.0 ** (np.arange(max(0, first), last + 1) / BINS_PER_OCTAVE)
    shown = grid[max(0, first) : last, max(0, first) : last].T
    with drawing(height=3.3) as drawn:
        axes = drawn.axes
        top = max(2, int(shown.max()))
        masked = np.ma.masked_equal(shown, 0)
        mesh = axes.pcolormesh(edges, edges, masked, cmap=BLUES, norm=LogNorm(1, top), linewidth=0)
        height, width = target
        axes.plot([width], [height], marker="+", color="#c8402f", markersize=9, markeredgewidth=1.6, linestyle="none")
        axes.plot(edges[[0, -1]], edges[[0, -1]], color=FAINT, linewidth=0.8, zorder=0)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set(xlabel="width, pixels", ylabel="height, pixels")
        axes.set(xlim=(min(edges[0], width / 1.2), max(edges[-1], width * 1.2)))
        axes.set(ylim=(min(edges[0], height / 1.2), max(edges[-1], height * 1.2)))
        for axis in (axes.xaxis, axes.yaxis):
            in_thousands(axis)
        bar = drawn.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=30)
        bar.outline.set_visible(False)
        in_thousands(bar.ax.yaxis)
        bar.set_label("images")
        caption = (
            f"Width and height of the source images; the cross is what they were brought to ({pixels(width, height)})."
        )
        return drawn.finish("Source sizes", caption, "source images by width and height; the numbers are in the table")


def side_histogram(widths: Counts, heights: Counts) -> Chart:
    """Source images by width, and by height: counts by pixels."""
    with drawing(height=3.3) as drawn:
        axes = drawn.axes
        sides = [np.flatnonzero(widths), np.flatnonzero(heights)]
        low, high = min(each[0] for each in sides), max(each[-1] for each in sides)
        bins = np.geomspace(max(1, low) / 1.05, (high + 1) * 1.05, 36).tolist()
        for name, own, counts, color in zip(
            ("width", "height"), sides, (widths, heights), ("#3266c4", "#d9932b"), strict=True
        ):
            axes.hist(own, bins=bins, weights=counts[own], histtype="step", linewidth=1.5, color=color, label=name)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="pixels", ylabel="images")
        axes.grid(axis="y")
        for axis in (axes.xaxis, axes.yaxis):
            in_thousands(axis)
        drawn.figure.legend(loc="outside upper left", ncols=2, handlelength=1.2)
        return drawn.finish(
            "Width and height", "How many source images are so wide, and so high.", "widths and heights"
        )


def format_bars(formats: Sequence[tuple[str, int]]) -> Chart:
    """Source images by file format, the most common first."""
    with drawing(height=3.3) as drawn:
        axes = drawn.axes
        names, counts = [name for name, _ in formats], [images for _, images in formats]
        bars = axes.barh(names, counts, color=SPLIT_COLORS["train"], height=0.6)
        axes.bar_label(bars, [f"{images:,}" for images in counts], padding=3, fontsize=7.5)
        axes.invert_yaxis()
        axes.margins(x=0.18)
        axes.set(xlabel="images")
        axes.set_ylim(max(len(names), 4) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(axis="x")
        in_thousands(axes.xaxis)
        alt = ", ".join(f"{name} {images:,}" for name, images in formats)
        return drawn.finish("Source formats", "Source images by file format.", alt)


def _unit(sizes: Sequence[int]) -> tuple[int, str]:
    largest = max(sizes, default=0)
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if largest >= unit:
            return unit, name
    return 1, "bytes"

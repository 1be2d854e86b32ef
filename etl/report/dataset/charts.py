"""The charts of a page of slices."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from etl.report.charts import COUNTS, DIFFERENCES, SPLIT_COLORS, Cells, Chart, Curve, bar_chart, heatmap, line_chart
from etl.report.text import pixels

Counts = npt.NDArray[np.int64]

BINS = 30
BINS_PER_OCTAVE = 4  # of sizes of images
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "KB"), (1, "bytes"))


def class_curve(totals: Sequence[int]) -> Chart:
    """Examples of every class, from the largest to the smallest."""
    ordered = np.sort(np.asarray(totals, np.float64))[::-1]
    curve = Curve("examples", np.arange(1.0, len(ordered) + 1), ordered, SPLIT_COLORS["train"])
    caption = f"Examples of each class, from {ordered[0]:,.0f} to {ordered[-1]:,.0f}."
    return line_chart("All classes by size", "classes, largest first", [curve], caption, from_zero=True)


def class_map(matrix: Counts, classes: Sequence[str], slices: Sequence[tuple[str, str]]) -> Chart:
    """Examples by class and slice: ``matrix`` of shape (classes, slices); ``slices`` are (split, label).

    The colour is the distance from the class's mean over the slices of the split.
    """
    above = matrix.astype(np.float64)
    for split in dict.fromkeys(split for split, _ in slices):
        own = [number for number, (each, _) in enumerate(slices) if each == split]
        above[:, own] -= above[:, own].mean(axis=1, keepdims=True)
    cells = Cells(above, classes, [label for _, label in slices], matrix, DIFFERENCES)
    caption = "Each class (rows) on each slice (columns): examples above or below the class's mean in the split."
    return heatmap("Classes on slices", ("slice", "class"), cells, caption)


def slice_bars(values: Sequence[int], splits: Sequence[str], what: str) -> Chart:
    """``values`` of each slice, coloured by split."""
    unit, name = _unit(values) if what == "bytes" else (1, "examples")
    caption = f"{name} of each slice, from {min(values):,} to {max(values):,} {what}."
    title = f"{what.capitalize()} per slice"
    return bar_chart(title, "slice", [each / unit for each in values], caption, groups=splits)


def slice_histogram(values: Sequence[int], split: str, what: str) -> Chart:
    """How many slices of a split have how many examples or bytes."""
    unit, name = _unit(values) if what == "bytes" else (1, "examples")
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) > BINS:
        counts, edges = np.histogram(values, BINS)
        distinct = edges[:-1]
    names = [f"{each / unit:,.4g}" for each in distinct]
    caption = f"How many of the {len(values):,} slices have so many {what}, {min(values):,} to {max(values):,}."
    title, owners = f"{split}: {what} per slice", [split] * len(names)
    return bar_chart(title, f"{name} per slice", counts.tolist(), caption, names=names, groups=owners)


def size_map(widths: Counts, heights: Counts, target: tuple[int, int]) -> Chart:
    """Source images by width and height, in steps of a part of an octave."""
    first = np.floor(np.log2(max(1, min(widths.min(), heights.min()))) * BINS_PER_OCTAVE)
    last = np.floor(np.log2(max(widths.max(), heights.max())) * BINS_PER_OCTAVE) + 1
    edges = 2.0 ** (np.arange(first, last + 1) / BINS_PER_OCTAVE)
    counts, _, _ = np.histogram2d(heights, widths, bins=[edges * (1 - 1e-9)] * 2)
    every = max(1, len(edges) // 12)
    labels = [f"{edge:,.0f}" if not number % every else "" for number, edge in enumerate(edges[:-1])]
    cells = Cells(np.where(counts > 0, counts, np.nan), labels, labels, are=COUNTS)
    caption = f"Images by width and height in pixels; they were brought to {pixels(target[1], target[0])}."
    return heatmap("Source sizes", ("width from", "height from"), cells, caption)


def side_curves(widths: Counts, heights: Counts) -> Chart:
    """Source images by width, and by height."""
    low, high = min(widths.min(), heights.min()), max(widths.max(), heights.max())
    edges = np.linspace(low, high + 1, min(BINS, int(high - low) + 1) + 1)
    curves = [
        Curve(name, edges[:-1], np.histogram(own, edges)[0].astype(np.float64), color)
        for name, own, color in (("width", widths, "#3266c4"), ("height", heights, "#d9932b"))
    ]
    caption = "How many source images are so wide, and so high."
    return line_chart("Width and height", "pixels", curves, caption, from_zero=True)


def format_bars(formats: Sequence[tuple[str, int]]) -> Chart:
    """Source images by file format, the most common first."""
    names, counts = zip(*formats, strict=True)
    caption = ", ".join(f"{name} {images:,}" for name, images in formats)
    return bar_chart("Source formats", "format", counts, f"Images: {caption}.", names=names)


def _unit(sizes: Sequence[int]) -> tuple[int, str]:
    return next((unit for unit in UNITS if max(sizes, default=0) >= unit[0]), UNITS[-1])

"""What the source images were: sizes and formats, from the rows of parts; streamed, in memory that does not grow."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.normalized.live_rows import live_facts, live_rows
from etl.raw.removed import Removed
from etl.storage.place import Place

MOST_PARTS = 256  # of which rows are read, at most 10,000 each
MOST_SIZES = 4096  # distinct sizes that are counted one by one
LARGEST_SIDE = 1 << 15
BINS_PER_OCTAVE = 4
OCTAVES = 27

Counts = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass
class SourceSurvey:
    """Counts of source images by size and format. ``grid`` is by width and height, a quarter of an octave a step.

    ``sizes`` holds (width, height) exactly, or None once there are more than `MOST_SIZES` of them; ``enlarged`` counts
    images with fewer pixels, on either side, than what they were brought to.
    """

    target_height: int
    target_width: int
    images: int = 0
    parts: int = 0
    all_parts: int = 0
    enlarged: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] | None = field(default_factory=Counter)
    widths: Counts = field(default_factory=lambda: np.zeros(LARGEST_SIDE + 1, np.int64))
    heights: Counts = field(default_factory=lambda: np.zeros(LARGEST_SIDE + 1, np.int64))
    grid: Counts = field(default_factory=lambda: np.zeros((BINS_PER_OCTAVE * OCTAVES,) * 2, np.int64))

    @property
    def is_sample(self) -> bool:
        return self.parts < self.all_parts

    def add(self, rows: pa.Table) -> None:
        """Add the images of these rows: columns source_format, source_width and source_height."""
        widths = rows["source_width"].to_numpy().astype(np.int64)
        heights = rows["source_height"].to_numpy().astype(np.int64)
        self.images += rows.num_rows
        self.enlarged += int(((widths < self.target_width) | (heights < self.target_height)).sum())
        for told in rows["source_format"].value_counts().to_pylist():
            self.formats[told["values"] or "?"] += told["counts"]
        self.widths += _by_side(widths)
        self.heights += _by_side(heights)
        np.add.at(self.grid, (_bins(widths), _bins(heights)), 1)
        self._count_sizes(widths, heights)

    def _count_sizes(self, widths: Counts, heights: Counts) -> None:
        if self.sizes is None:
            return
        pairs, counts = np.unique(widths << 32 | heights, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self.sizes[pair >> 32, pair & 0xFFFFFFFF] += count
        if len(self.sizes) > MOST_SIZES:
            self.sizes = None

    def quantiles(self, of: Counts) -> tuple[int, int, int]:
        """Least, median and most of the sides that ``of`` (``widths`` or ``heights``) counts, in pixels."""
        there = np.flatnonzero(of)
        median = int(np.searchsorted(np.cumsum(of), (self.images + 1) // 2))
        return int(there[0]), median, int(there[-1])

    def common_sizes(self, number: int) -> list[tuple[int, int, int]]:
        """(width, height, images) of the most common sizes; empty where there are too many to count."""
        ordered = sorted((self.sizes or {}).items(), key=lambda item: (-item[1], item[0]))
        return [(width, height, images) for (width, height), images in ordered[:number]]


def _by_side(sides: Counts) -> Counts:
    return np.bincount(np.clip(sides, 0, LARGEST_SIDE), minlength=LARGEST_SIDE + 1)


def _bins(sides: Counts) -> Counts:
    steps = np.floor(np.log2(np.maximum(sides, 1)) * BINS_PER_OCTAVE + 1e-9).astype(np.int64)
    return np.minimum(steps, BINS_PER_OCTAVE * OCTAVES - 1)


def survey_sources(normalized: Place, marker: Mapping[str, Any], removed: Removed, seed: int) -> SourceSurvey:
    """Survey the good images that are live, of all parts or of a seeded choice of `MOST_PARTS`.

    Raises DataError where a part's rows cannot be read, FileNotFoundError where there are none.
    """
    height, width = marker["config"]["size"]
    parts = [part for part in marker["parts"] if live_facts(part)["records"]]
    chosen = choose(parts, MOST_PARTS, seed)
    survey = SourceSurvey(height, width, parts=len(chosen), all_parts=len(parts))
    for part in chosen:
        survey.add(live_rows(normalized, part, removed, ["source_format", "source_width", "source_height"]))
    return survey


def choose(things: Sequence[T], most: int, seed: int) -> list[T]:
    """``things``, or a seeded choice of ``most`` of them, in their order."""
    if len(things) <= most:
        return list(things)
    taken = np.random.default_rng(abs(seed)).choice(len(things), most, replace=False)
    return [things[number] for number in np.sort(taken)]

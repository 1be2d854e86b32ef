"""Exact sums over pixels, and the mean and standard deviation that follow from them."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass
class PixelSums:
    """Exact sums of the training split's pixels and of their squares, by channel; ``pixels`` is their number."""

    pixels: int = 0
    sums: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        """Add the images of these rows (columns width, height, sums, squares)."""
        if rows.num_rows:
            areas = rows["width"].to_numpy().astype(np.int64) * rows["height"].to_numpy()
            self.merge(PixelSums(int(areas.sum()), _column_sums(rows["sums"]), _column_sums(rows["squares"])))

    def merge(self, other: "PixelSums") -> None:
        """Add the sums of ``other``."""
        self.pixels += other.pixels
        self.sums = _plus(self.sums, other.sums)
        self.squares = _plus(self.squares, other.squares)

    def to_json(self) -> dict[str, Any]:
        """With mean and standard deviation on the scale 0 to 255, rounded once, from the exact sums."""
        mean = [total / self.pixels for total in self.sums]
        variances = [
            (self.pixels * square - total * total) / (self.pixels * self.pixels)
            for total, square in zip(self.sums, self.squares, strict=True)
        ]
        std = [math.sqrt(variance) for variance in variances]
        return {"mean": mean, "std": std, "pixels": self.pixels, "sums": self.sums, "squares": self.squares}


def _column_sums(column: pa.ChunkedArray) -> list[int]:
    sums: list[int] = column.combine_chunks().values.to_numpy().reshape(len(column), -1).sum(axis=0).tolist()
    return sums


def _plus(sums: list[int], more: list[int]) -> list[int]:
    if not sums or not more:
        return sums or more
    return [have + value for have, value in zip(sums, more, strict=True)]

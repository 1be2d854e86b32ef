"""Compute how an image is cut, resized and padded: exact arithmetic on sides in pixels. Pure."""

import functools
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

CROP, EXACT, PAD, SHORTER, LONGEST = FITS = ("crop", "exact", "pad", "shorter", "longest")
EIGHTHS = 8  # libjpeg decodes at one of its sizes
KNOWN_PLANS = 4096  # most images of a set have one of few sizes, and exact fractions are slow


class Size(NamedTuple):
    """Height and width in pixels."""

    height: int
    width: int


Side = int | Fraction


class Box(NamedTuple):
    """A part of an image, in pixels; ``bottom`` and ``right`` are the first row and column behind it."""

    top: Side
    left: Side
    bottom: Side
    right: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """Height and width."""
        return self.bottom - self.top, self.right - self.left

    @property
    def rounded(self) -> tuple[int, int, int, int]:
        """Round to whole pixels, at least one each way."""
        top, left, bottom, right = map(_round, self)
        return top, left, max(bottom, top + 1), max(right, left + 1)


@dataclass(frozen=True)
class Plan:
    """The steps from an image of size ``source`` to its result.

    The part ``box`` of it is resized to ``size``, and that is laid onto a canvas of size ``canvas`` at ``offset``
    (rows, columns); where nothing is padded the canvas is as large and the offset (0, 0). Only of a source that was
    reduced the box ends between pixels.
    """

    source: Size
    box: Box
    size: Size
    canvas: Size
    offset: tuple[int, int] = (0, 0)

    @property
    def changes_nothing(self) -> bool:
        """True if the result is the whole source as it is."""
        return self.box == Box(0, 0, *self.source) and self.source == self.size == self.canvas

    def least_source(self, times: int) -> Size:
        """Return the minimum size of the source at which the box has ``times`` the pixels of its result each way."""
        kept = self.box.sides
        return Size(*(-(-times * self.source[axis] * self.size[axis] // kept[axis]) for axis in (0, 1)))

    def of_reduced(self, source: Size, mirrored: tuple[bool, bool] = (False, False)) -> "Plan":
        """Return the plan for the same image decoded at some eighths of its size, which is then ``source``.

        That is rounded up, so the picture ends within the last row and column; within the first one where the axis
        (rows, columns) has been ``mirrored``. A source of any other size is taken for the whole picture.
        """
        sizes = {each: Size(*(-(-side * each // EIGHTHS) for side in self.source)) for each in range(1, EIGHTHS)}
        eighths = [Fraction(each, EIGHTHS) for each, size in sizes.items() if size == source]
        scales = eighths[:1] * 2 or [Fraction(inner, outer) for inner, outer in zip(source, self.source, strict=True)]
        surplus = (inner - outer * scale for inner, outer, scale in zip(source, self.source, scales, strict=True))
        start = [each if first else 0 for each, first in zip(surplus, mirrored, strict=True)]
        box = Box(*(side * scales[axis % 2] + start[axis % 2] for axis, side in enumerate(self.box)))
        return replace(self, source=source, box=box)


@functools.lru_cache(KNOWN_PLANS)
def make_plan(source: Size, target: Size, fit: str, only_shrink: bool = False) -> Plan:
    """Plan how an image of size ``source`` is brought to ``target``, by ``fit``.

    - crop: the largest part of the target's shape from the centre, to the whole pixel, becomes the target.
    - exact: all of it becomes the target, stretched where the shape differs.
    - pad: all of it, as large as fits into the target, in the centre of a canvas of the target's size.
    - shorter: all of it, just large enough to cover the target: with a square one, the shorter side becomes its side.
    - longest: all of it, as large as fits into the target: with a square one, the longest side becomes its side.

    With ``only_shrink`` nothing is enlarged: what is smaller stays as it is (exact: each side that is smaller; crop:
    cut to the target where it is larger), and only pad still gives the target's size.
    """
    whole = Box(0, 0, *source)
    rows, columns = Fraction(target.height, source.height), Fraction(target.width, source.width)
    if fit == CROP:
        return _crop(source, target, max(rows, columns), only_shrink)
    if fit == EXACT:
        size = Size(*map(min, source, target)) if only_shrink else target
        return Plan(source, whole, size, size)
    scale = max(rows, columns) if fit == SHORTER else min(rows, columns)
    if only_shrink:
        scale = min(scale, Fraction(1))
    size = Size(*(max(1, _round(side * scale)) for side in source))
    if fit != PAD:
        return Plan(source, whole, size, size)
    top, left = ((outer - inner) // 2 for outer, inner in zip(target, size, strict=True))
    return Plan(source, whole, size, target, (top, left))


def _crop(source: Size, target: Size, scale: Fraction, only_shrink: bool) -> Plan:
    if only_shrink and scale > 1:
        size = Size(*map(min, source, target))
        return Plan(source, _centre(source, size), size, size)
    kept = Size(*(min(side, max(1, _round(wanted / scale))) for side, wanted in zip(source, target, strict=True)))
    return Plan(source, _centre(source, kept), target, target)


def _centre(source: Size, kept: Size) -> Box:
    top, left = (source.height - kept.height) // 2, (source.width - kept.width) // 2
    return Box(top, left, top + kept.height, left + kept.width)


def _round(value: Fraction | int) -> int:
    """Round to the nearest whole number, halves up."""
    return int((2 * value + 1) // 2)

"""Long series made short enough to draw, with nothing that stands out lost. Pure."""

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

MOST_POINTS = 1000


def extreme_positions(values: Series, most: int = MOST_POINTS) -> Positions:
    """Positions, ascending, of at most ``most`` (from 4 on) of ``values``, NaN left out.

    Among them are the first and the last, and the least and the largest of each of equal stretches: so a curve through
    them has the extremes of the whole, and looks alike at the width of a page.
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) <= most:
        return known
    chosen = {0, len(known) - 1}
    for stretch in np.array_split(np.arange(len(known)), (most - 2) // 2):
        own = values[known[stretch]]
        chosen |= {int(stretch[own.argmin()]), int(stretch[own.argmax()])}
    return known[np.array(sorted(chosen))]


def trailing_mean(values: Series, window: int) -> Series:
    """The mean of the last ``window`` values at each, of fewer at the beginning; NaN do not count.

    NaN where none of them is a number.
    """
    known = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    number = counts[ends] - counts[starts]
    return np.where(number > 0, (sums[ends] - sums[starts]) / np.maximum(number, 1), np.nan)


def stretch_starts(length: int, most: int) -> Positions:
    """Where each of at most ``most`` stretches of ``length`` values begins; none is empty, and they are about equal."""
    return np.arange(min(length, most)) * length // max(1, min(length, most))

"""What the time of a step went to: waiting for input, computing, the all-reduce, the rest; and who came last. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from etl.report.run.curves import Series, stretch_starts
from etl.report.run.metrics import OWN, PARTS, Step

REDUCE = PARTS.index("all-reduce")
MOST_STRETCHES = 200  # of a curve


@dataclass(frozen=True)
class PartTimes:
    """Seconds a step that the ranks spent in one part: of the means over the ranks the mean, median and percentile over
    the steps, the largest of any rank, and the share of all their time.

    ``slowest`` is the rank that had the most of it in most steps. It and the largest are None for the rest of a step.
    """

    part: str
    mean_s: float
    median_s: float
    p95_s: float
    largest_s: float | None
    slowest: int | None
    share: float


@dataclass(frozen=True)
class LastRank:
    """A rank for which the others waited in so many ``steps``, because no rank had more to do before the all-reduce.

    In these, ``own_median_s`` is the median of what it did then and ``others_median_s`` that of the mean of the others;
    ``part`` is the one in which it was the slowest most often. A rank's number is the one it had in the ring of a step.
    """

    rank: int
    steps: int
    share: float
    own_median_s: float
    others_median_s: float
    part: str


def part_times(steps: Sequence[Step]) -> list[PartTimes]:
    """One for each of `PARTS`."""
    means, overall = np.stack([step.mean_s for step in steps]), shares(steps)
    found = []
    for number, part in enumerate(PARTS):
        seconds = means[:, number]
        middle, p95 = np.quantile(seconds, [0.5, 0.95])
        largest = max(float(step.largest_s[number]) for step in steps) if number < OWN else None
        slowest = _most_often([int(step.slowest[number]) for step in steps]) if number < OWN else None
        average = float(seconds.mean())
        found.append(PartTimes(part, average, float(middle), float(p95), largest, slowest, float(overall[number])))
    return found


def last_ranks(steps: Sequence[Step]) -> list[LastRank]:
    """The ranks that came last, the most frequent first."""
    by_rank: dict[int, list[Step]] = {}
    for step in steps:
        by_rank.setdefault(int(step.slowest[OWN]), []).append(step)
    found = []
    for rank, own in by_rank.items():
        slow = [number for step in own for number in range(OWN) if number != REDUCE and step.slowest[number] == rank]
        found.append(
            LastRank(
                rank,
                len(own),
                len(own) / len(steps),
                median(float(step.largest_s[OWN]) for step in own),
                median(step.others_own_s for step in own),
                PARTS[_most_often(slow)] if slow else "other",
            )
        )
    return sorted(found, key=lambda each: (-each.steps, each.rank))


def _most_often(numbers: Sequence[int]) -> int:
    """The most frequent of these, of equals the least."""
    return min(Counter(numbers).items(), key=lambda each: (-each[1], each[0]))[0]


def shares(steps: Sequence[Step]) -> Series:
    """The share of each of `PARTS` in the time of all ranks; all 0 where no time passed."""
    sums = np.sum([step.total_s for step in steps], axis=0)
    return sums / (sums.sum() or 1.0)


def share_curve(steps: Sequence[Step]) -> tuple[Series, Series]:
    """Steps, and shares of shape (`PARTS`, those): of all ranks together, each over one of equal stretches of steps.

    A stretch stands at its last step.
    """
    starts = stretch_starts(len(steps), MOST_STRETCHES)
    sums = np.add.reduceat(np.stack([step.total_s for step in steps]), starts, axis=0)
    ends = [*starts[1:] - 1, len(steps) - 1]
    numbers = np.array([steps[end].number for end in ends], np.float64)
    return numbers, (sums / np.maximum(sums.sum(axis=1, keepdims=True), 1e-12)).T

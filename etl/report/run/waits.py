"""What the time of a step went to, by rank: waiting for input, computing, the all-reduce, and the rest. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from etl.report.run.curves import Series, stretch_starts
from etl.report.run.metrics import PARTS, Seconds, Step

REDUCE = PARTS.index("all-reduce")
MOST_STRETCHES = 200  # of a curve


@dataclass(frozen=True)
class PartTimes:
    """Seconds a step that a rank spent in one part, and the part's share of all its time."""

    part: str
    mean_s: float
    median_s: float
    p95_s: float
    largest_s: float
    share: float


@dataclass(frozen=True)
class RankWaits:
    """One rank's steps. ``own_median_s`` is the median of what it does without waiting for others: all but the reduce.

    ``last_share`` is the part of its steps in which no rank took longer for that, so the others waited for it.
    """

    rank: int
    steps: int
    parts: tuple[PartTimes, ...]
    own_median_s: float
    last_share: float

    def part(self, name: str) -> PartTimes:
        return self.parts[PARTS.index(name)]


def stack_steps(steps: Iterable[Step]) -> list[Seconds]:
    """Seconds of shape (steps, `PARTS`, ranks), one array for each stretch of steps with the same number of ranks."""
    return [
        np.stack([step.parts_s for step in group]) for _, group in groupby(steps, lambda step: step.parts_s.shape[1])
    ]


def waits_by_rank(stacks: Sequence[Seconds]) -> list[RankWaits]:
    """One for each rank that there ever was; a rank's number is the one it had in the ring of that step."""
    ranks = max((stack.shape[2] for stack in stacks), default=0)
    found = []
    for rank in range(ranks):
        with_it = [stack for stack in stacks if stack.shape[2] > rank]
        times = np.concatenate([stack[:, :, rank] for stack in with_it])
        own = np.delete(times, REDUCE, axis=1).sum(axis=1)
        last = sum(int((_own(stack).argmax(axis=1) == rank).sum()) for stack in with_it)
        parts = tuple(_part_times(name, times[:, number], times.sum()) for number, name in enumerate(PARTS))
        found.append(RankWaits(rank, len(times), parts, float(np.median(own)), last / len(times)))
    return found


def _own(stack: Seconds) -> Seconds:
    """Seconds without the all-reduce: of shape (steps, ranks)."""
    return np.delete(stack, REDUCE, axis=1).sum(axis=1)


def _part_times(name: str, seconds: Series, total: float) -> PartTimes:
    median, p95 = np.quantile(seconds, [0.5, 0.95])
    share = float(seconds.sum() / total) if total else 0.0
    return PartTimes(name, float(seconds.mean()), float(median), float(p95), float(seconds.max()), share)


def shares(stacks: Sequence[Seconds]) -> Series:
    """The share of each of `PARTS` in the time of all ranks; all 0 where no time passed."""
    sums = sum((stack.sum(axis=(0, 2)) for stack in stacks), np.zeros(len(PARTS)))
    return sums / (sums.sum() or 1.0)


def share_curve(steps: Sequence[Step]) -> tuple[Series, Series]:
    """Steps, and shares of shape (`PARTS`, those): of all ranks together, each over one of equal stretches of steps.

    A stretch stands at its last step.
    """
    starts = stretch_starts(len(steps), MOST_STRETCHES)
    sums = np.add.reduceat(np.stack([step.parts_s.sum(axis=1) for step in steps]), starts, axis=0)
    ends = [*starts[1:] - 1, len(steps) - 1]
    numbers = np.array([steps[end].number for end in ends], np.float64)
    return numbers, (sums / np.maximum(sums.sum(axis=1, keepdims=True), 1e-12)).T


def slowest(waits: Sequence[RankWaits]) -> RankWaits:
    """The rank with the most work of its own; the others wait for it in the all-reduce."""
    return max(waits, key=lambda each: (each.own_median_s, -each.rank))

"""Intervals of the order of an epoch: what is left of it, and how that is shared. Pure arithmetic.

What is left of an epoch is a short list of intervals of positions. Sharing it among ranks, equally, is dividing it into
runs of positions, and so is sharing a rank's part among the lanes that it reads side by side. A rank takes one example
of each lane in turn. So what is left after any step follows from the number of steps alone.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """The steps that take ``total`` examples in batches of ``batch`` on each of ``world_size`` ranks.

    All ranks take the same number of steps: as few as the largest share needs. Each rank spreads its share over them
    evenly, so that any two of its steps differ by at most one example, and no step is much smaller than the others
    (``drop_last`` False); or each step takes a whole batch, and what does not fill one on every rank is left out
    (``drop_last`` True).
    """

    total: int
    world_size: int
    batch: int
    drop_last: bool = False

    @property
    def number(self) -> int:
        """Steps of every rank."""
        if self.drop_last:
            return self.total // self.world_size // self.batch
        largest_share = -(-self.total // self.world_size)
        return -(-largest_share // self.batch)

    @property
    def examples(self) -> int:
        """Examples of all steps of all ranks, without padding."""
        return self.number * self.batch * self.world_size if self.drop_last else self.total

    def own(self, rank: int) -> int:
        """How many examples are the share of ``rank``."""
        start, stop = run_of(self.total, rank, self.world_size)
        return stop - start

    def before(self, rank: int, step: int) -> int:
        """How many examples ``rank`` takes before ``step`` (from 0)."""
        return self._of_share(self.own(rank), step)

    def real(self, rank: int, step: int) -> int:
        """How many examples the batch of ``rank`` at ``step`` (from 0) has; padding fills up the rest."""
        return self.before(rank, step + 1) - self.before(rank, step)

    def left(self, step: int) -> int:
        """How many examples of all ranks are not taken before ``step``."""
        share, longer = divmod(self.total, self.world_size)  # so many ranks have one more
        return self.total - (
            self._of_share(share, step) * (self.world_size - longer) + self._of_share(share + 1, step) * longer
        )

    def _of_share(self, share: int, step: int) -> int:
        if self.drop_last:
            return step * self.batch
        return share * step // self.number if self.number else 0


Interval = tuple[int, int]


def length(intervals: Sequence[Interval]) -> int:
    """How many positions are in these intervals."""
    return sum(stop - start for start, stop in intervals)


def select(intervals: Sequence[Interval], runs: Iterable[Interval]) -> list[Interval]:
    """The parts of ``intervals`` from their ``start``-th position to before their ``stop``-th, for each run of these.

    ``runs`` ascend and do not overlap. Neighbours are joined.
    """
    found: list[Interval] = []
    number = passed = 0
    for start, stop in runs:
        while start < stop and number < len(intervals):
            first, last = intervals[number]
            low, high = first + max(0, start - passed), min(last, first + stop - passed)
            if low < high:
                if found and found[-1][1] == low:
                    found[-1] = (found[-1][0], high)
                else:
                    found.append((low, high))
            if passed + last - first > stop:
                break
            passed += last - first
            number += 1
    return found


def cut(intervals: Sequence[Interval], start: int, stop: int) -> list[Interval]:
    """The part of ``intervals`` from their ``start``-th position to before their ``stop``-th."""
    return select(intervals, [(start, stop)])


def run_of(total: int, rank: int, world_size: int) -> Interval:
    """Which of ``total`` positions belong to ``rank``; any two ranks' runs differ by at most one position."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size}")
    return total * rank // world_size, total * (rank + 1) // world_size


def share(intervals: Sequence[Interval], rank: int, world_size: int) -> list[Interval]:
    """The part of ``intervals`` that belongs to ``rank``."""
    return cut(intervals, *run_of(length(intervals), rank, world_size))


def lane_runs(total: int, lanes: int) -> list[Interval]:
    """``total`` positions cut into runs for ``lanes``, the first ones longer by one if it does not come out even.

    So a rank that takes one of each lane in turn, the shorter ones left out of the last round, takes them all.
    """
    size, longer = divmod(total, lanes)
    starts = [size * lane + min(lane, longer) for lane in range(lanes + 1)]
    return list(itertools.pairwise(starts))


def taken_of_lane(taken: int, lane: int, lanes: int) -> int:
    """How many of ``taken`` examples came from ``lane``."""
    return max(0, -(-(taken - lane) // lanes))


def left_after(left: Sequence[Interval], steps: Steps, lanes: int, taken: int) -> list[Interval]:
    """What remains of ``left``, which has the examples of ``steps``, once each rank has taken so many of the steps."""
    runs = []
    for rank in range(steps.world_size):
        first, last = run_of(steps.total, rank, steps.world_size)
        examples = steps.before(rank, taken)
        for lane, (start, stop) in enumerate(lane_runs(last - first, lanes)):
            runs.append((min(first + stop, first + start + taken_of_lane(examples, lane, lanes)), first + stop))
    return select(left, runs)

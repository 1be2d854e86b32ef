"""The order of an epoch, and how it is shared. Pure arithmetic; knows no files, no TensorFlow and no number of workers.

An epoch is one seeded order of all examples of a split: slices in a permuted order, within a slice its blocks (runs of
neighbouring records) permuted, and within a window of blocks the records permuted. What is left of an epoch is a short
list of intervals of that order; sharing it among ranks, equally, is dividing intervals. So every example comes exactly
once per epoch whatever the number of ranks, and where slices are a multiple of the ranks a rank reads whole files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from etl.permute import Integers, permutation

WINDOW_BLOCKS = 16

Interval = tuple[int, int]


def length(intervals: Sequence[Interval]) -> int:
    """How many positions these intervals hold."""
    return sum(stop - start for start, stop in intervals)


def cut(intervals: Sequence[Interval], start: int, stop: int) -> list[Interval]:
    """The part of ``intervals`` from their ``start``-th position to before their ``stop``-th."""
    parts, passed = [], 0
    for first, last in intervals:
        low = max(first, first + start - passed)
        high = min(last, first + stop - passed)
        if low < high:
            parts.append((low, high))
        passed += last - first
    return parts


def share(intervals: Sequence[Interval], rank: int, world_size: int) -> list[Interval]:
    """The part of ``intervals`` that belongs to ``rank``; any two ranks' parts differ by at most one position."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size}")
    total = length(intervals)
    return cut(intervals, total * rank // world_size, total * (rank + 1) // world_size)


@dataclass(frozen=True)
class Steps:
    """The steps of an epoch that takes ``total`` examples in batches of ``batch`` on each of ``world_size`` ranks.

    All ranks take the same number of steps. The last ones of a rank that has run out are filled up with marked repeats
    (``drop_last`` False), or what does not fill a batch on every rank is left out (``drop_last`` True).
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

    def real(self, rank: int, step: int) -> int:
        """How many examples of the batch of ``rank`` at ``step`` (from 0) are no repeats."""
        own = self.total * (rank + 1) // self.world_size - self.total * rank // self.world_size
        return max(0, min(self.batch, own - step * self.batch))

    def real_everywhere(self, step: int) -> int:
        """How many examples all ranks' batches at ``step`` hold that are no repeats."""
        smallest, larger = divmod(self.total, self.world_size)
        before = step * self.batch

        def of_share(own: int) -> int:
            return max(0, min(self.batch, own - before))

        return (self.world_size - larger) * of_share(smallest) + larger * of_share(smallest + 1)


@dataclass(frozen=True)
class Stretch:
    """Neighbours in the order of an epoch that lie in one window of a slice.

    ``records`` (records,) are their numbers within the slice, in the epoch's order.
    """

    slice: int
    records: Integers


class EpochOrder:
    """The order of one epoch over slices whose blocks hold ``block_records[slice]`` (blocks,) records each."""

    def __init__(self, block_records: Sequence[Integers], seed: int, epoch: int) -> None:
        self._block_records = block_records
        self._seed = (seed, epoch)
        self._slices = permutation(len(block_records), "slices", *self._seed)
        sizes = np.array([int(block_records[number].sum()) for number in self._slices], dtype=np.int64)
        self._ends = np.cumsum(sizes)

    @property
    def total(self) -> int:
        """Examples of the epoch."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def stretches(self, intervals: Sequence[Interval]) -> Iterator[Stretch]:
        """The records at these positions of the epoch, in its order, in stretches of at most a window."""
        for start, stop in intervals:
            yield from self._interval(start, stop)

    def _interval(self, start: int, stop: int) -> Iterator[Stretch]:
        place = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            first = int(self._ends[place - 1]) if place else 0
            end = min(stop, int(self._ends[place]))
            yield from self._within_slice(int(self._slices[place]), start - first, end - first)
            start, place = end, place + 1

    def _within_slice(self, number: int, start: int, stop: int) -> Iterator[Stretch]:
        sizes = self._block_records[number]
        firsts = np.cumsum(sizes) - sizes
        blocks = permutation(len(sizes), "blocks", *self._seed, number)
        passed = 0
        for window in range(0, len(blocks), WINDOW_BLOCKS):
            chosen = blocks[window : window + WINDOW_BLOCKS]
            size = int(sizes[chosen].sum())
            low, high = max(start, passed), min(stop, passed + size)
            if low < high:
                members = np.concatenate([firsts[block] + np.arange(sizes[block]) for block in chosen])
                shuffled = members[permutation(size, "records", *self._seed, number, window)]
                yield Stretch(number, shuffled[low - passed : high - passed])
            passed += size

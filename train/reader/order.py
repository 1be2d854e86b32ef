"""The order of an epoch. Pure arithmetic; knows no files, no TensorFlow and no number of ranks.

An epoch is one seeded order of all examples of a split. Slices come in a permuted order. A slice is cut into windows,
runs of neighbouring blocks whose bounds are shifted by a seeded number of blocks; they come in the order of the file,
from a seeded one of them on, and within a window its records are permuted. So a slice is read front to back, as storage
is fastest, and in each epoch other examples meet in a window; the place of an example is random since slices were cut.
What a rank reads are intervals of this order (`train.reader.intervals`).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from etl.partition.shares import Integers, permutation, permute
from train.reader.intervals import Interval

WINDOW_BLOCKS = 16


@dataclass(frozen=True)
class Stretch:
    """Neighbours in the order of an epoch that lie in one window of a slice.

    ``records`` (records,) are their numbers within the slice, in the epoch's order.
    """

    slice: int
    records: Integers


class EpochOrder:
    """The order of one epoch over slices of ``records`` (slices,) examples each.

    ``block_records`` gives, for the number of a slice, how many records each of its blocks has: (blocks,). It is
    called for the slices of the intervals that are asked for, and for no others.
    """

    def __init__(
        self,
        records: Integers,
        block_records: Callable[[int], Integers],
        seed: int,
        epoch: int,
        *,
        window_blocks: int = WINDOW_BLOCKS,
    ) -> None:
        self._block_records = block_records
        self._seed = (seed, epoch)
        self._slices = permutation(len(records), "slices", *self._seed)
        self._sizes = records[self._slices]
        self._ends = np.cumsum(self._sizes)
        self.seed, self.epoch, self.window_blocks = seed, epoch, window_blocks

    @property
    def total(self) -> int:
        """Examples of the epoch."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def slices(self, intervals: Sequence[Interval]) -> list[int]:
        """The numbers of the slices that these positions lie in, in the order of the epoch, each once."""
        found: dict[int, None] = {}
        for start, stop in intervals:
            first, last = np.searchsorted(self._ends, (start, stop - 1), side="right")
            is_used = self._sizes[first : last + 1] > 0
            found |= dict.fromkeys(self._slices[first : last + 1][is_used].tolist())
        return list(found)

    def stretches(self, intervals: Sequence[Interval]) -> Iterator[Stretch]:
        """The records at these positions of the epoch, in its order, in stretches of at most a window."""
        for start, stop in intervals:
            place = int(np.searchsorted(self._ends, start, side="right"))
            while start < stop:
                first = int(self._ends[place - 1]) if place else 0
                end = min(stop, int(self._ends[place]))
                yield from self._within_slice(int(self._slices[place]), start - first, end - first)
                start, place = end, place + 1

    def _within_slice(self, number: int, start: int, stop: int) -> Iterator[Stretch]:
        bounds = self._window_bounds(number)
        passed = 0
        windows = len(bounds) - 1
        turned = int(permute(np.zeros(1, np.int64), windows, "windows", *self._seed, number)[0])
        for window in (*range(turned, windows), *range(turned)):
            first, size = int(bounds[window]), int(bounds[window + 1] - bounds[window])
            low, high = max(start, passed), min(stop, passed + size)
            if low < high:
                shuffled = permutation(size, "records", *self._seed, number, window)
                yield Stretch(number, first + shuffled[low - passed : high - passed])
            passed += size

    def _window_bounds(self, number: int) -> Integers:
        """Where each window of a slice begins, as the number of a record, and where the last one ends."""
        records = self._block_records(number)
        starts = np.concatenate([[0], np.cumsum(records)])
        shift = int(permute(np.zeros(1, np.int64), self.window_blocks, "shift", *self._seed, number)[0])
        inner = np.arange(shift or self.window_blocks, len(records), self.window_blocks)
        return starts[np.concatenate([[0], inner, [len(records)]])].astype(np.int64)


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's augmentation: 64 bits, signed."""
    digest = hashlib.blake2b(repr((seed, epoch)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)

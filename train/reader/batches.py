"""Batches drawn from the windows of lanes: one example of each lane in turn."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from etl.errors import DataError
from etl.partition.shares import Integers
from train.reader.config import STOP, ReaderOptions
from train.reader.damage import DamagedRecord
from train.reader.intervals import taken_of_lane
from train.reader.windows import Window

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RecordBatch:
    """Serialized examples in this process's memory, arrays of shape (batch,).

    ``addresses`` and ``sizes`` (int64, bytes) are where they lie, in memory that ``buffers`` owns; ``numbers``
    (int64) are their rows in the table of examples; ``weights`` (float32) are 1, or 0 for padding: a repeat that fills
    the batch up, or takes the place of one of the ``skipped`` damaged records.
    """

    addresses: Integers
    sizes: Integers
    numbers: Integers
    weights: Floats
    buffers: tuple[Any, ...]
    skipped: int = 0

    def examples(self) -> list[bytes]:
        """Copies of the serialized examples."""
        return [ctypes.string_at(*each) for each in zip(self.addresses.tolist(), self.sizes.tolist(), strict=True)]

    def write_to(self, memory: npt.NDArray[np.uint8], part: slice) -> None:
        """Copy the serialized examples of a part to the begin of ``memory``, one after the other."""
        target = memory.ctypes.data
        for address, size in zip(self.addresses[part].tolist(), self.sizes[part].tolist(), strict=True):
            ctypes.memmove(target, address, size)
            target += size


@dataclass(frozen=True)
class PaddingExample:
    """An example that fills a place without one: a copy of it, and its number."""

    data: npt.NDArray[np.uint8]
    number: int

    @classmethod
    def of(cls, batch: RecordBatch, place: int) -> Self:
        """The example at ``place`` of ``batch``."""
        data = ctypes.string_at(int(batch.addresses[place]), int(batch.sizes[place]))
        return cls(np.frombuffer(data, np.uint8), int(batch.numbers[place]))


class BatchBuilder:
    """Draws batches of ``size`` examples from ``lanes``, each the windows of one lane.

    ``standby`` gives what fills up a batch without a whole example of its own; None if there is none at all.
    ``taken`` is how many examples were taken of all lanes before their windows begin.
    """

    def __init__(
        self,
        lanes: Sequence[Iterator[Window]],
        size: int,
        reading: ReaderOptions,
        standby: Callable[[], PaddingExample | None],
        taken: int = 0,
    ) -> None:
        self._cursors = [_Cursor(windows) for windows in lanes]
        self._size = size
        self._reading = reading
        self._standby = standby
        self._taken = taken
        self._skipped = 0

    def batch(self, real: int) -> RecordBatch:
        """The next ``real`` examples, and as much padding as fills the batch up.

        Raises DataError for a damaged record, unless it may be skipped, and for more than may be.
        """
        addresses, sizes, numbers = (np.zeros(self._size, np.int64) for _ in range(3))
        weights = np.zeros(self._size, np.float32)
        weights[:real] = 1
        buffers: list[Any] = []
        damaged: list[DamagedRecord] = []
        lanes = len(self._cursors)
        for lane, cursor in enumerate(self._cursors):
            place = (lane - self._taken) % lanes
            wanted = taken_of_lane(self._taken + real, lane, lanes) - taken_of_lane(self._taken, lane, lanes)
            for window, start, stop in cursor.take(wanted):
                end = place + (stop - start) * lanes
                addresses[place:end:lanes] = window.addresses[start:stop]
                sizes[place:end:lanes] = window.sizes[start:stop]
                numbers[place:end:lanes] = window.numbers[start:stop]
                for number in [each for each in window.damaged if start <= each < stop]:
                    weights[place + (number - start) * lanes] = 0
                    damaged.append(window.damaged[number])
                buffers.append(window)
                place = end
        self._taken += real
        self._skip(damaged)
        batch = RecordBatch(addresses, sizes, numbers, weights, tuple(buffers), len(damaged))
        return batch if weights.all() else self._fill(batch)

    def _fill(self, batch: RecordBatch) -> RecordBatch:
        """Put padding wherever ``batch`` has no example."""
        real, fill = np.flatnonzero(batch.weights), np.flatnonzero(batch.weights == 0)
        if len(real):
            for column in (batch.addresses, batch.sizes, batch.numbers):
                column[fill] = column[real[0]]
            return batch
        padding = self._standby()
        if padding is None:
            return batch
        batch.addresses[fill], batch.sizes[fill], batch.numbers[fill] = (
            padding.data.ctypes.data,
            padding.data.size,
            padding.number,
        )
        return replace(batch, buffers=(*batch.buffers, padding.data))

    def _skip(self, damaged: Sequence[DamagedRecord]) -> None:
        if not damaged:
            return
        if self._reading.on_damage == STOP:
            raise DataError(
                f"{damaged[0]}; repair it with: ringslice verify --repair, or leave such out with --on-damage skip"
            )
        self._skipped += len(damaged)
        if self._skipped > self._reading.skip_limit:
            raise DataError(
                f"{damaged[-1]}; {self._skipped} are to be skipped, more than --skip-limit {self._reading.skip_limit};"
                " repair the slices with: ringslice verify --repair"
            )


class _Cursor:
    """How far the windows of one lane were drawn from."""

    def __init__(self, windows: Iterator[Window]) -> None:
        self._windows = windows
        self._window: Window | None = None
        self._place = 0

    def take(self, wanted: int) -> Iterator[tuple[Window, int, int]]:
        """The next ``wanted`` records, as a window and the bounds of a run of its records, again and again."""
        while wanted:
            if self._window is None or self._place == len(self._window.sizes):
                self._window = None  # free it before waiting for the next one
                self._window, self._place = next(self._windows), 0
            stop = min(len(self._window.sizes), self._place + wanted)
            yield self._window, self._place, stop
            wanted -= stop - self._place
            self._place = stop

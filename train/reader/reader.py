"""Reads a rank's share of a split: serialized examples in the order of an epoch, batch by batch. Imports no TensorFlow.

A rank's share is cut into lanes (`train.reader.prefetch`), which threads read ahead; a batch takes one example of each
lane in turn. Its examples stay in the memory that they were read to: a batch has their addresses, so that Python does
nothing for each of them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import zip_longest

import numpy as np

from etl.slices.manifest import Manifest
from etl.storage.place import Place
from train.reader.batches import BatchBuilder, PaddingExample, RecordBatch
from train.reader.config import ReaderOptions
from train.reader.intervals import Interval, Steps, cut, lane_runs, length, share, taken_of_lane
from train.reader.memory import Budget
from train.reader.order import EpochOrder
from train.reader.prefetch import Lane, Source, no_progress
from train.reader.retry import Patience
from train.reader.slice_index import SliceIndexes
from train.reader.state import ReaderState
from train.reader.windows import Window

ENDING_S = 2.0  # for all lanes together: those that hang are left alone


class SplitReader:
    """The slices of one split below the folder of their manifest.

    ``progress`` is called by the reader's threads with the name of a slice and the offset they are at, in bytes.
    """

    def __init__(
        self,
        folder: Place,
        manifest: Manifest,
        split: str,
        reading: ReaderOptions | None = None,
        progress: Callable[[str, int], None] = no_progress,
    ) -> None:
        self._split = split
        self.slices = manifest.splits[split]
        self.reading = reading = reading or ReaderOptions()
        indexes = SliceIndexes(folder, self.slices, Patience(reading.retry_s))
        self._source = Source(folder, self.slices, indexes, reading, progress)
        self._records = np.array([each.records for each in self.slices], dtype=np.int64)

    def require(self) -> None:
        """Raise UsageError if the memory is too little, DataError if the table of blocks cannot be used."""
        self.reading.window_blocks(self.slices)
        self._source.indexes.require()

    @property
    def total(self) -> int:
        """Examples of the split."""
        return int(self._records.sum())

    def order(self, seed: int, epoch: int, window_blocks: int | None = None) -> EpochOrder:
        """The order of an epoch; ``window_blocks`` is that of an epoch which was begun, by default the reading's."""
        window_blocks = window_blocks or self.reading.window_blocks(self.slices)
        return EpochOrder(self._records, self._source.indexes.block_records, seed, epoch, window_blocks=window_blocks)

    def lanes(self, world_size: int) -> int:
        """How many slices each of so many ranks reads at once."""
        return self.reading.lanes_of(len(self.slices), world_size)

    def shares(self, order: EpochOrder, left: Sequence[Interval], world_size: int) -> Iterator[tuple[int, int]]:
        """How many slices each rank reads of, and how many records, of what is left of an epoch: by rank."""
        for rank in range(world_size):
            own = share(left, rank, world_size)
            yield len(order.slices(own)), length(own)

    def begin(self, slices: str, order: EpochOrder) -> ReaderState:
        """The state at the begin of the epoch of ``order``, of the slices with this fingerprint."""
        return ReaderState.of(slices, self._split, order)

    def batches_of(self, state: ReaderState, rank: int) -> Iterator[RecordBatch]:
        """The batches of ``rank`` that are left of the epoch of ``state``; see `batches`."""
        order = self.order(state.seed, state.epoch, state.window_blocks)
        return self.batches(order, state.steps, rank, state.left, state.taken)

    def batches(
        self,
        order: EpochOrder,
        steps: Steps,
        rank: int,
        left: Sequence[Interval] | None = None,
        first_step: int = 0,
    ) -> Iterator[RecordBatch]:
        """The batches of ``rank`` from ``first_step`` on: as many as there are steps, each padded to the full size.

        ``left`` is what is left of the epoch and shared out; all of it if not given. A batch does not depend on
        which step was the first. Its padding is its own first whole example, or the first of the epoch.

        Raises DataError, naming slice, offset and key, for a damaged record, unless it may be skipped, and for a slice
        that is missing or does not fit its index; EnvironmentFailure, naming slice and offset, if the storage fails.
        """
        own = share([(0, order.total)] if left is None else left, rank, steps.world_size)
        taken = steps.before(rank, first_step)
        runs = self._runs(own, self.lanes(steps.world_size), taken)
        self._fetch_ahead([order.slices(run) for run in runs])
        with self._lanes(order, runs, steps.batch) as lanes:
            builder = BatchBuilder(lanes, steps.batch, self.reading, cache(lambda: self._any(order)), taken)
            for step in range(first_step, steps.number):
                yield builder.batch(steps.real(rank, step))

    @staticmethod
    def _runs(own: Sequence[Interval], lanes: int, taken: int) -> list[list[Interval]]:
        """What each lane has to read of a rank's share, of which so many examples were taken."""
        number = min(lanes, max(1, length(own)))
        bounds = enumerate(lane_runs(length(own), number))
        return [cut(own, start + taken_of_lane(taken, lane, number), stop) for lane, (start, stop) in bounds]

    @contextmanager
    def _lanes(
        self, order: EpochOrder, runs: Sequence[Sequence[Interval]], batch: int
    ) -> Iterator[list[Iterator[Window]]]:
        limit = self.reading.window_budget(self.slices, len(runs), batch)
        budget = Budget(limit, len(runs), self.reading.window_bytes(self.slices, order.window_blocks))
        lanes = [Lane(self._source, order, run, lane, budget) for lane, run in enumerate(runs)]
        try:
            yield [lane.windows() for lane in lanes]
        finally:
            for lane in lanes:
                lane.stop()
            budget.stop()
            deadline = time.monotonic() + ENDING_S
            for lane in lanes:
                lane.join(deadline)

    def _fetch_ahead(self, by_lane: Sequence[Sequence[int]]) -> None:
        """Have the cache copy the slices that the lanes read, the first of each lane first."""
        if self.reading.cache is not None:
            together = (number for column in zip_longest(*by_lane) for number in column if number is not None)
            wanted = [self.slices[number] for number in dict.fromkeys(together)]
            self.reading.cache.fetch_ahead(self._source.folder, wanted)

    def _any(self, order: EpochOrder) -> PaddingExample | None:
        """An example for a rank that has none of its own: the first of the epoch that is not damaged."""
        for position in range(order.total):
            with self._lanes(order, [[(position, position + 1)]], batch=1) as lanes:
                batch = BatchBuilder(lanes, 1, self.reading, lambda: None).batch(1)
                if batch.weights[0]:
                    return PaddingExample.of(batch, 0)
        return None

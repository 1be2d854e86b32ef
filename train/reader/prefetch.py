"""Lanes: the parts of a rank's share that it reads side by side, each front to back by a thread of its own."""

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from etl.errors import EnvironmentFailure
from etl.partition.shares import Integers
from etl.slices.manifest import Slice
from etl.storage.place import Place
from train.reader.config import ReaderOptions
from train.reader.intervals import Interval
from train.reader.memory import Budget
from train.reader.order import EpochOrder, Stretch
from train.reader.retry import Patience, ReadStopped
from train.reader.slice_file import SliceFile
from train.reader.slice_index import SliceIndexes
from train.reader.windows import Window, WindowPlan, load_window

LOOK_S = 1.0


def no_progress(slice_name: str, offset: int) -> None:
    """Ignore where the reader is."""


@dataclass(frozen=True)
class Source:
    """The slices of a split below the folder of their manifest, and how they are read; see `SplitReader`."""

    folder: Place
    slices: Sequence[Slice]
    indexes: SliceIndexes
    reading: ReaderOptions
    progress: Callable[[str, int], None] = no_progress


class Lane:
    """Reads the stretches of ``intervals`` ahead, in their order, as far as the budget goes."""

    def __init__(
        self, source: Source, order: EpochOrder, intervals: Sequence[Interval], number: int, budget: Budget
    ) -> None:
        self._source = source
        self._stretches = order.stretches(intervals)
        self._number = number
        self._budget = budget
        self._stopping = threading.Event()
        self._ready: queue.SimpleQueue[Window | BaseException] = queue.SimpleQueue()
        self._file: SliceFile | None = None  # of the slice that is being read
        self._offsets: Integers = np.empty(0, np.int64)  # of its records
        self._last_bytes = (time.monotonic(), 0)
        self._thread = threading.Thread(target=self._run, name=f"lane-{number}", daemon=True)
        self._thread.start()

    def windows(self) -> Iterator[Window]:
        """The windows of this lane, which count for the budget until they are deleted.

        Raises what reading raises, and EnvironmentFailure if no byte came from the storage for too long.
        """
        while True:
            yield self._next()
            self._budget.pass_on(self._number)

    def stop(self) -> None:
        """End the thread, unless it hangs in a read."""
        self._stopping.set()

    def join(self, deadline: float) -> None:
        """Wait for the end of the thread, until ``deadline`` (of the monotonic clock) at most."""
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _next(self) -> Window:
        waiting_since = time.monotonic()
        silence_s = self._source.reading.silence_s
        while True:
            try:
                found = self._ready.get(timeout=min(LOOK_S, silence_s))
            except queue.Empty:
                last, offset = self._last_bytes
                if time.monotonic() - max(waiting_since, last) > silence_s:
                    file = self._file  # the lane's thread may close it now
                    place = file.place if file else self._source.folder
                    raise EnvironmentFailure(
                        f"no bytes of {place} at offset {offset} for {silence_s:g} s; look at the storage, or give"
                        " more with --read-timeout"
                    ) from None
                continue
            if isinstance(found, BaseException):
                raise found
            return found

    def _run(self) -> None:
        try:
            for stretch in self._stretches:
                self._ready.put(self._load(stretch))
        except ReadStopped:
            pass
        except BaseException as error:  # the rank raises it when it comes to this window
            self._ready.put(error)
        finally:
            self._close()

    def _load(self, stretch: Stretch) -> Window:
        source = self._source
        file = self._open(stretch.slice)
        plan = WindowPlan(stretch, source.indexes.blocks(stretch.slice), self._offsets)
        self._budget.acquire(self._number, plan.memory_bytes)
        self._note_bytes(0)
        window = load_window(source.folder, file, plan, source.reading.check)
        weakref.finalize(window, self._budget.free, plan.memory_bytes).atexit = False
        return window

    def _open(self, number: int) -> SliceFile:
        source = self._source
        each = source.slices[number]
        if self._file is None or self._file.slice is not each:
            self._close()
            self._note_bytes(0)
            self._offsets = source.indexes.offsets(number)
            patience = Patience(source.reading.retry_s, self._stopping)
            self._file = SliceFile(source.folder, each, source.reading.cache, patience, self._note_bytes)
        return self._file

    def _note_bytes(self, offset: int) -> None:
        if self._file is not None and offset != self._last_bytes[1]:  # to try the same again is not progress
            self._source.progress(self._file.slice.name, offset)
        self._last_bytes = (time.monotonic(), offset)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

"""The position of this rank in the training, as a heartbeat reports it to the other ranks."""

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from train.monitor.launcher import launched_rank, launched_size

READING = "reading"
JOINED = "joined"
LOADING, SAVING = "loading the checkpoint", "waiting for the last checkpoint to be written"
LEASING, FOR_ALL = "taking the lease of the run", "what rank 0 does for all"
# how phases begin in which a rank waits for the storage
ON_STORAGE = (JOINED, LEASING, FOR_ALL, LOADING, READING, SAVING)
OUT = -1  # the count of a rank that is in no ring
GAP_S = 5.0  # a longer time between two calls that are due every second: the process stood still, perhaps all did
BUSY = 0.25  # cores: a process that uses as much CPU time is computing


@dataclass(frozen=True)
class Beat:
    """Where a rank was at one moment.

    ``count`` counts the phases that every rank of the ``generation`` of the ring goes through in the same order, so of
    two ranks the one with the smaller count is behind; it is `OUT` in no ring. ``alone``: ``phase`` is one of
    this rank's own. ``idle_s`` are the seconds since any progress, by the rank's own clock; ``number`` grows by each
    beat.
    """

    rank: int
    size: int
    generation: int
    host: str
    pid: int
    count: int
    epoch: int | None
    step: int | None
    phase: str
    alone: bool
    slice: str | None
    offset: int | None
    idle_s: float
    number: int

    @property
    def is_computing(self) -> bool:
        """True if it does something of its own for which it needs neither storage nor another rank."""
        return self.alone and not self.phase.startswith(READING)

    @property
    def is_on_storage(self) -> bool:
        """True if it waits for the storage, and not for another rank."""
        return self.phase.startswith(ON_STORAGE)

    @property
    def rank_name(self) -> str:
        """ "rank 2 on host1"."""
        return f"rank {self.rank} on {self.host}"

    @property
    def when(self) -> str:
        """How far it is: "epoch 2, step 13"; empty before the first epoch."""
        known = (("epoch", self.epoch), ("step", self.step))
        return ", ".join(f"{name} {value}" for name, value in known if value is not None)

    @property
    def doing(self) -> str:
        """What it does: "reading train-00003-of-00008 at offset 1,234"; where its reader is in other phases, too."""
        if self.slice is None:
            return self.phase
        place = f"{self.slice} at offset {self.offset:,}"
        return f"{READING} {place}" if self.phase == READING else f"{self.phase}, its reader at {place}"

    @property
    def where(self) -> str:
        """Where it is: "epoch 2, step 13, reading train-00003-of-00008 at offset 1,234,567"."""
        return f"{self.when}, {self.doing}" if self.when else self.doing


class Status:
    """The position of a rank and its progress; safe for any number of threads. A call costs about a microsecond.

    ``clock`` gives seconds of real time, ``cpu_clock`` the CPU time of this process.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.process_time
    ) -> None:
        self._lock = threading.Lock()
        self._clock, self._cpu_clock = clock, cpu_clock
        self._rank, self._size = launched_rank() or 0, launched_size()
        self._generation = self._count = self._number = 0
        self._epoch: int | None = None
        self._step: int | None = None
        self._phase, self._alone = "starting", False
        self._slice: tuple[str, int] | None = None
        self._last = self._began = clock()
        self._sampled = clock(), cpu_clock()

    def joined(self, rank: int, size: int, generation: int = 0) -> None:
        """A ring was made, the first or another: from now on this is ``rank`` of ``size``; phases count from 0."""
        with self._lock:
            self._rank, self._size, self._generation, self._count = rank, size, generation, 0
            self._begin(JOINED, alone=False)

    def left(self) -> None:
        """The ring is broken: until this rank joins another, it waits for no other."""
        with self._lock:
            self._count = OUT
            self._begin("out of the ring", alone=True)

    def phase(self, name: str, epoch: int | None = None, step: int | None = None) -> None:
        """Begin a phase that all ranks go through in the same order.

        ``epoch`` and ``step`` stay as they were if they are not given; a new epoch without a step has none.
        """
        with self._lock:
            self._count += self._count != OUT
            self._begin(name, alone=False)
            if epoch is not None and epoch != self._epoch:
                self._epoch, self._step = epoch, None
            self._step = self._step if step is None else step

    def local_phase(self, name: str) -> None:
        """Begin a phase of this rank alone. Unless it is reading, CPU time is progress in it, see `sample`."""
        with self._lock:
            self._begin(name, alone=True)

    def _begin(self, phase: str, alone: bool) -> None:
        self._phase, self._alone = phase, alone
        self._last = self._began = self._clock()

    def sample(self, limit_s: float, is_watched: bool = True) -> None:
        """Find progress that is not reported; call it every second.

        In a phase of this rank's own that is not reading, CPU time is progress: at least `BUSY` cores since the last
        call, in the first ``limit_s`` of the phase. So it is in any phase if no other rank watches this one: only the
        storage is waited for. Time in which this process stood still is not counted.
        """
        with self._lock:
            now, cpu_s = self._clock(), self._cpu_clock()
            since, cpu_since = self._sampled
            self._sampled = now, cpu_s
            if now - since > GAP_S:
                self._last, self._began = (min(now, moment + now - since) for moment in (self._last, self._began))
            is_computing = self._alone and not self._phase.startswith(READING) and now - self._began < limit_s
            if (is_computing or not is_watched) and cpu_s - cpu_since >= BUSY * (now - since):
                self._last = now

    def progress(self, slice_name: str = "", offset: int = 0) -> None:
        """The current phase made progress; with ``slice_name``, the reader is at ``offset`` of this slice, in bytes."""
        if slice_name:
            self._slice = slice_name, offset
        self._last = self._clock()  # assigning one reference needs no lock

    def beat(self) -> Beat:
        """The position now."""
        with self._lock:
            self._number = max(self._number + 1, time.monotonic_ns() // 1_000_000)
            slice_name, offset = self._slice or (None, None)
            return Beat(
                rank=self._rank,
                size=self._size,
                generation=self._generation,
                host=socket.gethostname(),
                pid=os.getpid(),
                count=self._count,
                epoch=self._epoch,
                step=self._step,
                phase=self._phase,
                alone=self._alone,
                slice=slice_name,
                offset=offset,
                idle_s=round(max(0.0, self._clock() - self._last), 3),
                number=self._number,
            )

"""Memory that slices are read into, used again and again: fresh pages cost more than reading does, and add up."""

import ctypes
import mmap
import os
import threading
import weakref
from collections import defaultdict

from train.reader.retry import ReadStopped


class Budget:
    """At most ``limit_bytes`` at once for what ``lanes`` lanes have read, or are reading, and that is not freed yet.

    A lane all of whose windows were passed on always gets what it asks for, so none ever waits for another: that much,
    ``largest_bytes`` for each such lane, is kept back of what the others may take, and for a quarter of the lanes at
    least, because a batch keeps windows that were passed on.
    """

    def __init__(self, limit_bytes: int, lanes: int, largest_bytes: int) -> None:
        self._limit = limit_bytes
        self._largest = largest_bytes
        self._waiting = [0] * lanes  # windows of each lane that its rank has not done with
        self._held = 0
        self._changed = threading.Condition()  # its owner may take the lock again: a window is freed in its thread
        self._stopped = False

    def acquire(self, lane: int, size_bytes: int) -> None:
        """Wait until ``lane`` may read a window of this size. Raises ReadStopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._fits(lane, size_bytes))
            if self._stopped:
                raise ReadStopped
            self._waiting[lane] += 1
            self._held += size_bytes

    def pass_on(self, lane: int) -> None:
        """The rank has drawn all records of a window of ``lane``, though batches may still use it."""
        with self._changed:
            self._waiting[lane] -= 1
            self._changed.notify_all()

    def free(self, size_bytes: int) -> None:
        """A window of this size is not used any more."""
        with self._changed:
            self._held -= size_bytes
            self._changed.notify_all()

    def stop(self) -> None:
        """End all waiting, with ReadStopped; no lane waits from now on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _fits(self, lane: int, size_bytes: int) -> bool:
        if not self._waiting[lane]:
            return True
        kept_back = max(self._waiting.count(0), len(self._waiting) // 4) * self._largest
        return self._held + kept_back + size_bytes <= self._limit


PIECE_BYTES = 4 << 20  # read at once; more gains nothing, with either driver of HDFS or locally
STEP_BYTES = 1 << 20  # sizes of memory, so that one room fits many pieces

_lock = threading.RLock()  # its owner may be interrupted by the end of a buffer
_free: defaultdict[int, list[mmap.mmap]] = defaultdict(list)  # by size, for all readers of this process


class Buffer:
    """Room for ``size`` bytes at ``address``; it goes back when this is deleted."""

    def __init__(self, size: int) -> None:
        room = _take(room_bytes(size))
        weakref.finalize(self, _give_back, room).atexit = False
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(room))
        self.view = memoryview(room)[:size]


def room_bytes(size: int) -> int:
    """Bytes of memory that a buffer of ``size`` takes."""
    return max(1, -(-size // STEP_BYTES)) * STEP_BYTES


def _take(size: int) -> mmap.mmap:
    """Memory that was used before, or else new memory in place of as much that lies unused in other sizes."""
    with _lock:
        if _free[size]:
            return _free[size].pop()  # the one used last, which is in the processor's cache more likely
        unused = (rooms for rooms in _free.values() if rooms)
        freed = 0
        while freed < size and (rooms := next(unused, None)):
            while rooms and freed < size:
                freed += len(rooms.pop())
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # forked processes would share Python's default


def _forget() -> None:
    """In a forked process: use no memory of the parent's, and not its lock, which a thread there may have."""
    global _lock
    _lock = threading.RLock()
    _free.clear()


os.register_at_fork(after_in_child=_forget)


def _give_back(room: mmap.mmap) -> None:
    with _lock:
        _free[len(room)].append(room)

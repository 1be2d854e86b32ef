"""Memory that slices are read into, used again and again: fresh pages cost more than reading does, and add up."""

import ctypes
import mmap
import threading
import weakref
from collections import defaultdict

PIECE_BYTES = 4 << 20  # read at once; more gains nothing, with either driver of HDFS or locally
STEP_BYTES = 1 << 20  # sizes of memory, so that one room fits many pieces

_lock = threading.RLock()  # its owner may be interrupted by the end of a buffer
_free: defaultdict[int, list[mmap.mmap]] = defaultdict(list)  # by size, for all readers of this process


class Buffer:
    """Room for ``size`` bytes at ``address``; it goes back when nobody holds this any more."""

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
    return mmap.mmap(-1, size)


def _give_back(room: mmap.mmap) -> None:
    with _lock:
        _free[len(room)].append(room)

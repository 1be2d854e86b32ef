"""Memory that slices are read into, used again and again: fresh pages cost more than reading does, and add up."""

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

PIECE_BYTES = 4 << 20  # read at once; more gains nothing, with either driver of HDFS or locally

_free: deque[npt.NDArray[np.uint8]] = deque()  # for all readers of this process


class Buffer:
    """Room for ``size`` bytes at ``address``; it goes back when nobody holds this any more."""

    def __init__(self, size: int) -> None:
        content = _room() if size <= PIECE_BYTES else np.empty(size, np.uint8)
        if size <= PIECE_BYTES:
            weakref.finalize(self, _free.append, content).atexit = False
        self.address: int = content.ctypes.data
        self.size = size
        self.view = memoryview(content.data)[:size]


def _room() -> npt.NDArray[np.uint8]:
    try:
        return _free.pop()  # the one used last, which is in the processor's cache more likely
    except IndexError:
        return np.empty(PIECE_BYTES, np.uint8)

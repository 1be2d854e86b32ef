"""One slice that is being read: opened late, from the cache or its place, and again if a connection breaks."""

import time
from collections.abc import Callable

import pyarrow as pa

from etl.errors import EnvironmentFailure
from etl.progress import log
from etl.slices.manifest import Slice
from etl.storage.place import Place
from train.reader.cache import SliceCache
from train.reader.retry import Patience, missing


class SliceFile:
    """The file of a slice below ``folder``, read in pieces; ``on_bytes`` gets each offset that is reached."""

    def __init__(
        self, folder: Place, each: Slice, cache: SliceCache | None, patience: Patience, on_bytes: Callable[[int], None]
    ) -> None:
        self.slice = each
        self.place = folder / f"{each.name}.tfrecord"
        self._cache = cache
        self._patience = patience
        self._on_bytes = on_bytes
        self._file: pa.NativeFile | None = None
        self._size_bytes = 0
        self._is_copy = False

    def read(self, offset: int, room: memoryview) -> int:
        """Fill ``room`` with the bytes from ``offset`` on; returns how many there were, fewer at the end of the file.

        Raises DataError if the file is missing, EnvironmentFailure if it could not be read for so long.
        """
        began, tries, size = time.monotonic(), 0, 0
        while True:
            self._on_bytes(offset + size)
            try:
                while more := self._read_once(offset + size, room[size:]):
                    size += more
                    began = time.monotonic()
                    self._on_bytes(offset + size)
            except FileNotFoundError:
                if not self._leave_copy():
                    raise missing(self.place) from None
            except (OSError, EnvironmentFailure) as error:
                if self._leave_copy():
                    continue
                self.close()
                self._patience.pause(error, self.place, offset + size, began, tries)
                tries += 1
            else:
                if tries:
                    log("reader", f"{self.place} answers again, after {tries} tries")
                return size

    def read_afresh(self, offset: int, room: memoryview) -> int:
        """The same bytes once more, over another connection, and from the slice itself rather than from a copy."""
        self.close()
        self._leave_copy()
        return self.read(offset, room)

    def close(self) -> None:
        """Close what is open; the next read opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _read_once(self, offset: int, room: memoryview) -> int:
        """As many bytes as come at once; 0 at the end of the file or of ``room``."""
        if self._file is None:
            copy = self._cache.place_of(self.slice) if self._cache is not None else None
            self._is_copy = copy is not None
            self._file = (copy or self.place).open_input()
            self._size_bytes = self._file.size()
        if offset > self._size_bytes:  # it was cut short: HDFS clients take a seek to there badly
            return 0
        self._file.seek(offset)
        return int(self._file.readinto(room)) if len(room) else 0

    def _leave_copy(self) -> bool:
        """Give up the copy that was read from; False if it was not a copy."""
        was_copy, self._is_copy = self._is_copy, False
        if was_copy and self._cache is not None:
            self.close()
            self._cache.drop(self.slice)
        return was_copy

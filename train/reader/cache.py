"""Slices kept on a local disk, so that a second epoch does not cross the network. Imports no TensorFlow.

The ranks of a host share a cache, and so do jobs, whatever datasets they read. Nothing that goes wrong with it stops a
reader: what is not there is read from its original.
"""

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow

from etl.errors import RingsliceError, reason_of
from etl.progress import log
from etl.slices.manifest import Slice
from etl.storage.place import Place
from train.reader.cache_files import CachedPlace, CacheFolder, CacheFull, Part

COPY_BYTES = 4 << 20  # read at a time; no more memory is used
CLOSE_TIMEOUT_S = 5  # a read that hangs is left to the process's end
FILE_CLOCK_LAG_NS = 10_000_000  # the time that Linux gives a file is that of the last tick


@dataclass
class _CopyJob:
    """What to copy: slices by SHA-256, in the order of their use; those that are read already come last."""

    folder: Place
    wanted: dict[str, Slice]
    being_read: set[str] = field(default_factory=set)

    def pop(self) -> Slice:
        first = next(iter(self.wanted))
        return self.wanted.pop(next((each for each in self.wanted if each not in self.being_read), first))


class SliceCache:
    """Slices in ``folder``, of at most ``limit_bytes`` in all; ``quiet`` if another rank reports what goes wrong.

    For room the least recently used files go, but none that was used since this cache was opened: each slice comes once
    in an epoch, and if not all fit, every one would be gone before it comes again.
    """

    def __init__(self, folder: Path, limit_bytes: int, quiet: bool = False) -> None:
        self._files = CacheFolder(folder.absolute(), limit_bytes)
        self._quiet = quiet
        self._opened_ns = time.time_ns() - FILE_CLOCK_LAG_NS
        self._reported: set[str] = set()
        self._job: _CopyJob | None = None
        self._changed = threading.Condition()
        self._ends = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def place_of(self, each: Slice) -> CachedPlace | None:
        """The slice's file in the cache, which stays while this place, or a file that it opened, is there.

        None if it is not cached: the caller reads the original.
        """
        try:
            found = self._files.open(each.sha256, each.size_bytes)
        except OSError as error:
            self._give_up(error)
            return None
        with self._changed:
            if found is None and self._job is not None:
                self._job.being_read.add(each.sha256)
        return found

    def drop(self, each: Slice) -> None:
        """Remove the file of a slice: a reader found it damaged."""
        try:
            self._files.remove(each.sha256)
        except OSError as error:
            self._give_up(error)

    def fetch_ahead(self, folder: Place, slices: Sequence[Slice]) -> None:
        """Begin to copy ``slices``, which lie below ``folder`` and are given in the order of their use.

        They take the place of those asked for before. What a reader opens before it is copied comes last.
        """
        try:
            job = _CopyJob(folder, {each.sha256: each for each in slices if not self._files.has(each.sha256)})
        except OSError as error:
            return self._give_up(error)
        with self._changed:
            self._job = job
            if self._thread is None and not self._ends:
                self._thread = threading.Thread(target=self._fetch_all, name="slice cache", daemon=True)
                self._thread.start()
            self._changed.notify()

    def fetch(self, folder: Place, each: Slice) -> None:
        """Copy one slice, now, unless it is there or being copied. Raises CacheFull."""
        original = folder / f"{each.name}.tfrecord"
        try:
            part = self._files.start_part(each.sha256, each.size_bytes, self._opened_ns)
            if part is None:
                return
            with part:
                found = self._copy(original, part, each.size_bytes)
                if found == each.sha256:
                    self._files.publish(part, each.sha256)
                elif found is not None:
                    self._report(f"{original} does not have the SHA-256 of its manifest, and is not kept")
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """End the copying; what is half copied is removed."""
        self._end()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _end(self) -> bool:
        """True if this was the first to end it."""
        with self._changed:
            first, self._ends = not self._ends, True
            self._changed.notify()
        return first

    def _fetch_all(self) -> None:
        try:
            self._files.trim(self._opened_ns)  # it may have had another limit before
        except OSError as error:
            self._give_up(error)
        while (job := self._wait()) is not None:
            with self._changed:
                chosen = job.pop()
            try:
                self.fetch(job.folder, chosen)
            except CacheFull:
                job.wanted.clear()  # one slice is about as large as another
                self._report(f"{self._files.path} is full: not every slice is kept (--cache-size)")

    def _wait(self) -> _CopyJob | None:
        """A job with something left to copy; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends or (self._job is not None and self._job.wanted))
            return None if self._ends else self._job

    def _copy(self, original: Place, part: Part, size_bytes: int) -> str | None:
        """Copy until its end, or more than ``size_bytes`` are there; the SHA-256, None if it was not read so far."""
        digest = hashlib.sha256()
        try:
            for chunk in _chunks(original):
                if self._ends:
                    return None
                digest.update(chunk)
                size_bytes -= chunk.size
                if size_bytes < 0:
                    break
                part.write(chunk)
        except _Unreadable:
            return None
        return digest.hexdigest()

    def _give_up(self, error: OSError) -> None:
        """Copy nothing more; what is in the cache is used on."""
        if self._end():
            self._report(f"nothing more is kept in {self._files.path}: {reason_of(error)}")

    def _report(self, line: str) -> None:
        if line not in self._reported and not self._quiet:
            self._reported.add(line)
            log("cache", line)


class _Unreadable(Exception):
    """An original cannot be read: its reader will report why."""


def _chunks(place: Place) -> Iterator[pyarrow.Buffer]:
    try:
        with place.open_input() as file:
            while (chunk := file.read_buffer(COPY_BYTES)).size:
                yield chunk
    except (OSError, RingsliceError) as error:
        raise _Unreadable from error

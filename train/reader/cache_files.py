"""The files of a cache on a local disk, shared by processes of one user that may be killed at any moment.

A file is named by the SHA-256 of its content, so it is right or it is not there. While it is written it ends in `.part`
and its writer has an exclusive lock on it; each reader has a shared one. Locks end with their processes: a part that
is not locked is left over, a file that is not locked may be evicted. A process that makes room, or starts a part, has
the lock of the folder for as long as that takes.
"""

import fcntl
import os
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow

from etl.errors import DataError
from etl.storage.place import Place, open_place

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class CachedPlace(Place):
    """A file of the cache that is not evicted while this object, or a file that it opened, is there.

    It can be read to its end even after its name is removed: it is opened by the descriptor that has the lock.
    """

    descriptor: int = field(compare=False, repr=False)

    @classmethod
    def lock(cls, path: Path, size_bytes: int) -> Self | None:
        """The file at ``path``; None if there is none of that size, or another process is removing it."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        place = open_place(str(path))
        found = cls(place.filesystem, place.path, descriptor)
        weakref.finalize(found, os.close, descriptor)
        status = os.fstat(descriptor)
        if not (_try_lock(descriptor, fcntl.LOCK_SH) and status.st_nlink and status.st_size == size_bytes):
            return None
        os.utime(descriptor)  # used last now
        return found

    def open_input(self) -> pyarrow.NativeFile:
        """Open the file that has the lock, which lasts as long as what this returns."""
        file = self.filesystem.arrow.open_input_file(f"/proc/self/fd/{self.descriptor}")
        weakref.finalize(file, os.close, os.dup(self.descriptor))  # a lock lasts until its last descriptor is closed
        return file


class CacheFull(Exception):
    """There is no room for a file, and none can be made."""


class Part:
    """A file that is being written, gone at the end of the block unless it was published.

    It has its full size from the first, so that others leave room for it.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.published = False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            os.truncate(self._descriptor, size_bytes)
        except OSError:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.published:  # else that name may be another's by now
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def write(self, data: pyarrow.Buffer) -> None:
        """Append all of ``data``. Raises OSError."""
        left = memoryview(data).cast("B")
        while left:
            left = left[os.write(self._descriptor, left) :]

    def sync(self) -> None:
        """Return when what was written outlasts a crash of the machine."""
        os.fsync(self._descriptor)


@dataclass(frozen=True)
class CacheFolder:
    """At most ``limit_bytes`` of files and parts in the folder ``path``. Other files there are left alone."""

    path: Path
    limit_bytes: int

    def open(self, sha256: str, size_bytes: int) -> CachedPlace | None:
        """The file of this content; None if there is none, or none of that size."""
        return CachedPlace.lock(self._file(sha256), size_bytes)

    def has(self, sha256: str) -> bool:
        """True if there is a file of this content. Raises DataError if this is not a SHA-256."""
        return self._file(sha256).exists()

    def remove(self, sha256: str) -> None:
        """Remove a file, even while it is read; do nothing if there is none."""
        self._file(sha256).unlink(missing_ok=True)

    def start_part(self, sha256: str, size_bytes: int, used_before_ns: int) -> Part | None:
        """A part to write, once there is room for it; None if the file is there, or another process writes it.

        For room, files that no process reads are evicted if their last use was before ``used_before_ns``, oldest first.
        Raises CacheFull if that is not enough.
        """
        part = self.path / f"{sha256}.part"
        with self._lock():
            self._remove_left_over()
            if self.has(sha256) or part.exists():
                return None
            self._make_room(size_bytes, used_before_ns)
            return Part(part, size_bytes)

    def trim(self, used_before_ns: int) -> None:
        """Remove what was left over, and what is above the limit, as far as it may be evicted."""
        with self._lock(), suppress(CacheFull):
            self._remove_left_over()
            self._make_room(0, used_before_ns)

    def publish(self, part: Part, sha256: str) -> None:
        """Give a part its final name."""
        part.sync()
        with self._lock():  # a process that makes room sees it under one of its names
            part.path.rename(self._file(sha256))
            part.published = True

    def _file(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):  # it comes from a manifest, and becomes a path
            raise DataError(f"{sha256!r} in the manifest is not a SHA-256; it was damaged or written by something else")
        return self.path / f"{sha256}.tfrecord"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.path / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for a few calls of the local filesystem; the kernel frees it
            yield

    def _remove_left_over(self) -> None:
        for part, _ in self._found(".part"):
            _remove_unless_locked(part)

    def _make_room(self, size_bytes: int, used_before_ns: int) -> None:
        files = self._found(".tfrecord")
        used = sum(status.st_size for _, status in files + self._found(".part"))
        for path, status in sorted(files, key=lambda each: each[1].st_mtime_ns):
            if used + size_bytes <= self.limit_bytes or status.st_mtime_ns >= used_before_ns:
                break
            if _remove_unless_locked(path):
                used -= status.st_size
        if used + size_bytes > self.limit_bytes:
            raise CacheFull

    def _found(self, ending: str) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self.path.iterdir():
            if path.suffix == ending and _SHA256.fullmatch(path.stem):
                with suppress(FileNotFoundError):  # removed by a reader that found it damaged, or by its writer
                    found.append((path, path.stat()))
        return found


def _remove_unless_locked(path: Path) -> bool:
    """Remove a file unless a process reads or writes it; True if it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        if not _try_lock(descriptor, fcntl.LOCK_EX):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

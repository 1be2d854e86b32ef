"""The one way to storage: places on a ``pyarrow.fs`` filesystem, and files that appear whole or not at all.

A file is written under a name of its attempt's own and then *published*: renamed, atomically, to a final name that is
not there yet. Of two attempts at one file the first to publish wins; the other removes its own.
"""

import errno
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import pyarrow
from pyarrow import fs

from etl.errors import EnvironmentFailure, UsageError

READ_BUFFER_BYTES = 1 << 20
WRITE_BUFFER_BYTES = 1 << 20

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True)
class Place:
    """A file or folder: an opened filesystem and an absolute path on it. ``place / "name"`` is one level down."""

    filesystem: fs.FileSystem
    path: str
    scheme: str = "file"

    def __truediv__(self, name: str) -> "Place":
        return Place(self.filesystem, f"{self.path.rstrip('/')}/{name}", self.scheme)

    def __str__(self) -> str:
        return self.path if self.scheme == "file" else f"{self.scheme}://{self.path}"

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rsplit("/", 1)[-1]

    @property
    def uri(self) -> str:
        """The text that `open_place` takes, in any process."""
        return str(self)

    def info(self) -> fs.FileInfo:
        return self.filesystem.get_file_info(self.path)

    def exists(self) -> bool:
        return bool(self.info().type != fs.FileType.NotFound)

    def children(self, recursive: bool = False) -> list[fs.FileInfo]:
        """What lies below, sorted by path; empty where there is no such folder.

        Raises UsageError for a name that is not UTF-8.
        """
        selector = fs.FileSelector(self.path, recursive=recursive, allow_not_found=True)
        try:
            return sorted(self.filesystem.get_file_info(selector), key=lambda info: info.path)
        except UnicodeDecodeError as error:
            raise UsageError(f"the name {error.object!r} below {self} is not UTF-8; rename it") from None

    @property
    def real_path(self) -> str:
        """The path with symbolic links followed, where the filesystem has them."""
        return os.path.realpath(self.path) if self.scheme == "file" else self.path

    def open_input(self) -> pyarrow.NativeFile:
        """Open for reading at any offset. Raises FileNotFoundError."""
        return self.filesystem.open_input_file(self.path)

    def open_stream(self) -> pyarrow.NativeFile:
        """Open for reading from front to back, buffered."""
        return self.filesystem.open_input_stream(self.path, compression=None, buffer_size=READ_BUFFER_BYTES)

    def read_bytes(self) -> bytes:
        with self.filesystem.open_input_stream(self.path, compression=None) as stream:
            return cast(bytes, stream.read())

    def read_json(self) -> dict[str, Any]:
        """The JSON object in this file. Raises EnvironmentFailure where it cannot be parsed."""
        try:
            return cast(dict[str, Any], json.loads(self.read_bytes()))
        except ValueError as error:
            raise EnvironmentFailure(
                f"{self} is not JSON ({error}); it was damaged or written by something else"
            ) from None

    def sha256(self) -> str:
        """SHA-256 of the file's content, in hexadecimal, read in chunks."""
        digest = hashlib.sha256()
        with self.filesystem.open_input_stream(self.path, compression=None) as stream:
            while chunk := stream.read_buffer(READ_BUFFER_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    def make_folder(self) -> "Place":
        self.filesystem.create_dir(self.path, recursive=True)
        return self

    def delete(self) -> None:
        """Delete this file or folder with all below it; nothing happens where there is none."""
        info = self.info()
        if info.type == fs.FileType.Directory:
            self.filesystem.delete_dir(self.path)
        elif info.type != fs.FileType.NotFound:
            self.filesystem.delete_file(self.path)


def open_place(uri: str) -> Place:
    """The place that ``uri`` names: a ``file://`` URI or a bare local path.

    Raises UsageError for a scheme that there is no filesystem for.
    """
    parts = urlsplit(uri)
    if not uri:
        raise UsageError("the place is empty; give a folder such as data/flowers or file:///data/flowers")
    if "://" not in uri:
        return Place(fs.LocalFileSystem(), os.path.abspath(uri))
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Place(fs.LocalFileSystem(), os.path.abspath(unquote(parts.path)))
    raise UsageError(f"cannot open {uri!r}: give a local path or a file:///absolute/path")


@dataclass
class OutputFile:
    """A file that is being written; ``sha256``, ``size_bytes`` and ``won`` hold once it has been published."""

    place: Place
    stream: pyarrow.NativeFile
    size_bytes: int = 0
    won: bool = False

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()

    def write(self, data: bytes | memoryview | pyarrow.Buffer) -> None:
        self.stream.write(data)
        self._digest.update(data)
        self.size_bytes += len(data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def publishing(final: Place, work: Place) -> Iterator[OutputFile]:
    """Write ``final``: it is there, whole, after the block, and untouched when the block raises.

    The bytes go to an attempt's own name in the folder ``work`` (of the same filesystem). Where another attempt has
    published ``final`` meanwhile, its bytes must equal ours.

    Raises EnvironmentFailure where ``final`` is there with other bytes.
    """
    work.make_folder()
    attempt = work / f"attempt-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        stream = attempt.filesystem.open_output_stream(attempt.path, compression=None, buffer_size=WRITE_BUFFER_BYTES)
        with stream:
            output = OutputFile(final, stream)
            yield output
        final.filesystem.create_dir(final.path.rsplit("/", 1)[0], recursive=True)
        output.won = publish(attempt, final)
        if not output.won and final.sha256() != output.sha256:
            raise EnvironmentFailure(f"{final} was there with other bytes; remove it, or run again with --overwrite")
    except BaseException as error:
        _delete_attempt(attempt)
        if isinstance(error, OSError) and error.errno in _WRITE_ERRORS and not error.filename:
            error.filename = str(final)  # pyarrow does not say where
        raise


def publish(attempt: Place, final: Place) -> bool:
    """Give the file ``attempt`` the name ``final``, in one atomic step, if that name is free.

    Returns False where it was taken; the attempt's file is then removed.
    """
    descriptor = os.open(attempt.path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.link(attempt.path, final.path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise EnvironmentFailure(f"{final} is on a filesystem without hard links; choose another place") from None
        raise
    finally:
        _delete_attempt(attempt)
    return True


def _delete_attempt(attempt: Place) -> None:
    try:
        os.unlink(attempt.path)
    except FileNotFoundError:
        pass


def publish_bytes(final: Place, work: Place, data: bytes) -> OutputFile:
    """Publish a file of ``data``."""
    with publishing(final, work) as output:
        output.write(data)
    return output


def json_bytes(value: object) -> bytes:
    """``value`` as the JSON text that markers are written in: the same value, the same bytes."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()

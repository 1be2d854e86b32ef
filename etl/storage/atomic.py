"""Files that appear whole or not at all.

A file is written under a name of its own and then *published*: renamed, atomically, to a final name that is free. Of
two attempts at one file the first one to publish wins; the other one removes its own.

Attempts are in the staging folder of their owner (a run of a stage, or its tasks). A run that takes a stage over
deletes the staging folders of those before it: from then on none of their attempts can be written or published (the
filesystem orders the rename and the deletion), so an owner that was replaced stops at its next write.
"""

import errno
import hashlib
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

import pyarrow

from etl.errors import EnvironmentFailure
from etl.storage.place import Place

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class TakenError(EnvironmentFailure):
    """The name is taken, by a file of other bytes."""


class ReplacedError(EnvironmentFailure):
    """The staging folder of this owner is gone: another run has taken over."""


@dataclass
class OutputFile:
    """A file that is being written; ``sha256``, ``size_bytes`` and ``won`` hold once it has been published."""

    place: Place
    attempt: Place
    stream: pyarrow.NativeFile
    size_bytes: int = 0
    won: bool = False
    closed: ClassVar[bool] = False  # `pyarrow.PythonFile` asks for it

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()

    def write(self, data: bytes | memoryview | pyarrow.Buffer) -> None:
        """Append ``data``."""
        self.stream.write(data)
        self._digest.update(data)
        self.size_bytes += len(data)

    def sync(self) -> None:
        """Return when what was written so far survives a crash, if the filesystem can do that for an open file."""
        self.stream.flush()
        self.attempt.filesystem.sync(self.attempt.path)

    @property
    def sha256(self) -> str:
        """SHA-256 of what was written so far, in hexadecimal."""
        return self._digest.hexdigest()


@contextmanager
def publish_stream(final: Place, staging: Place) -> Iterator[OutputFile]:
    """Write ``final``: it is whole after the block, and untouched if the block raises.

    The bytes go to a name of their own in the folder ``staging`` (of the same filesystem), which must exist. If another
    attempt has published ``final`` meanwhile, its bytes must equal ours.

    Raises TakenError if ``final`` exists with other bytes, ReplacedError if ``staging`` is gone.
    """
    with _attempt(final, staging) as (attempt, output):
        yield output
        output.stream.close()
        output.won = publish(attempt, final)
        if not output.won and final.sha256() != output.sha256:
            raise TakenError(f"{final} was there with other bytes; remove it, or run again with --overwrite")


def _own_name(staging: Place) -> Place:
    return staging / f"attempt-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def _attempt(final: Place, staging: Place) -> Iterator[tuple[Place, OutputFile]]:
    attempt = _own_name(staging)
    stream = None
    try:
        stream = attempt.filesystem.open_new(attempt.path)
        final.parent.make_folder()  # only now: an owner that was replaced makes no folder again
        yield attempt, OutputFile(final, attempt, stream)
    except BaseException as error:
        was_deleted = isinstance(error, FileNotFoundError) and not attempt.exists()  # its folder may go a moment later
        with suppress(OSError, EnvironmentFailure):  # the first error is the one to report
            if stream is not None:
                stream.close()
        with suppress(OSError, EnvironmentFailure):
            attempt.delete()
        if was_deleted:
            raise ReplacedError(f"{final} was not written: another run has taken this stage over") from None
        if isinstance(error, OSError):
            is_unnamed = error.errno in _WRITE_ERRORS and not error.filename  # by pyarrow
            if is_unnamed or error.filename == attempt.path:
                error.filename = str(final)
        raise


def publish(attempt: Place, final: Place) -> bool:
    """Give the closed file ``attempt`` the name ``final``, in one atomic step, if that name is free.

    Its bytes survive a crash before it has that name, and the name does on return: what is published after it, such as
    a marker that names it, never exists without it.

    Returns False if the name was taken; the attempt is then removed.
    """
    attempt.filesystem.sync(attempt.path)
    try:
        attempt.filesystem.rename_new(attempt.path, final.path)
    except FileExistsError:
        attempt.delete()
        return False
    final.filesystem.sync_folder(final.parent.path)
    return True


def publish_bytes(final: Place, staging: Place, data: bytes) -> OutputFile:
    """Publish a file of ``data``."""
    with publish_stream(final, staging) as output:
        output.write(data)
    return output


@contextmanager
def replace_stream(final: Place, staging: Place) -> Iterator[OutputFile]:
    """Write ``final``, in place of one that exists: after the block it has these bytes, in one atomic step.

    It is untouched if the block raises. Raises ReplacedError if ``staging`` is gone.
    """
    with _attempt(final, staging) as (attempt, output):
        yield output
        output.stream.close()
        _replace(attempt, final)


def replace_bytes(final: Place, staging: Place, data: bytes) -> None:
    """Write ``final`` with ``data``, in one atomic step, in place of one that exists."""
    with replace_stream(final, staging) as output:
        output.write(data)


def withdraw(final: Place, staging: Place) -> None:
    """Delete the file or folder ``final`` by way of the folder ``staging``; it may be gone already.

    One atomic step moves it there, so that what a run which took over a moment ago put in its place is safe.

    Raises ReplacedError if ``staging`` is gone: an owner that was replaced deletes nothing.
    """
    attempt = _own_name(staging)
    try:
        final.filesystem.replace(final.path, attempt.path)
    except FileNotFoundError:
        if not staging.exists():
            raise ReplacedError(f"{final} was not removed: another run has taken this stage over") from None
        return
    attempt.delete()


def replace_file(made: Place, final: Place) -> None:
    """Give the finished file ``made`` the name ``final``, in one atomic step, in place of a file that has it."""
    final.parent.make_folder()
    _replace(made, final)


def _replace(made: Place, final: Place) -> None:
    made.filesystem.sync(made.path)
    made.filesystem.replace(made.path, final.path)
    final.filesystem.sync_folder(final.parent.path)

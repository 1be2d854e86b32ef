"""Files that appear whole or not at all.

A file is written under a name of its attempt's own and then *published*: renamed, atomically, to a final name that is
not there yet. Of two attempts at one file the first to publish wins; the other removes its own.

Attempts lie in a folder of their owner's (a run of a stage, or its tasks). Whoever takes a stage over deletes the
folders of those before it: from then on none of their attempts can be written or published (the rename and the deletion
are ordered by the filesystem), so an owner that has been replaced stops at its next write.
"""

import errno
import hashlib
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow

from etl.errors import EnvironmentFailure
from etl.storage.place import Place

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class TakenError(EnvironmentFailure):
    """The name is taken, by a file of other bytes."""


class ReplacedError(EnvironmentFailure):
    """The folder of this owner's attempts is gone: another run has taken over."""


@dataclass
class OutputFile:
    """A file that is being written; ``sha256``, ``size_bytes`` and ``won`` hold once it has been published."""

    place: Place
    attempt: Place
    stream: pyarrow.NativeFile
    size_bytes: int = 0
    won: bool = False

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()

    def write(self, data: bytes | memoryview | pyarrow.Buffer) -> None:
        self.stream.write(data)
        self._digest.update(data)
        self.size_bytes += len(data)

    def sync(self) -> None:
        """Return when what was written so far outlasts a crash, where that can be had of an open file."""
        self.stream.flush()
        self.attempt.filesystem.sync(self.attempt.path)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def publishing(final: Place, attempts: Place) -> Iterator[OutputFile]:
    """Write ``final``: it is there, whole, after the block, and untouched when the block raises.

    The bytes go to an attempt's own name in the folder ``attempts`` (of the same filesystem), which must be there.
    Where another attempt has published ``final`` meanwhile, its bytes must equal ours.

    Raises TakenError where ``final`` is there with other bytes, ReplacedError where ``attempts`` is gone.
    """
    with _attempt(final, attempts) as (attempt, output):
        yield output
        output.stream.close()
        output.won = publish(attempt, final)
        if not output.won and final.sha256() != output.sha256:
            raise TakenError(f"{final} was there with other bytes; remove it, or run again with --overwrite")


def _own_name(attempts: Place) -> Place:
    return attempts / f"attempt-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@contextmanager
def _attempt(final: Place, attempts: Place) -> Iterator[tuple[Place, OutputFile]]:
    attempt = _own_name(attempts)
    stream = None
    try:
        stream = attempt.filesystem.open_new(attempt.path)
        final.parent.make_folder()  # only now: who was replaced makes no folder again
        yield attempt, OutputFile(final, attempt, stream)
    except BaseException as error:
        was_deleted = isinstance(error, FileNotFoundError) and not attempt.exists()  # its folder may go a moment later
        with suppress(OSError, EnvironmentFailure):  # the first error is the one to tell
            if stream is not None:
                stream.close()
        with suppress(OSError, EnvironmentFailure):
            attempt.delete()
        if was_deleted:
            raise ReplacedError(f"{final} was not written: another run has taken this stage over") from None
        if isinstance(error, OSError) and error.errno in _WRITE_ERRORS and not error.filename:
            error.filename = str(final)  # pyarrow does not say where
        raise


def publish(attempt: Place, final: Place) -> bool:
    """Give the closed file ``attempt`` the name ``final``, in one atomic step, if that name is free.

    Its bytes outlast a crash before it has that name, and the name does on return: whatever is published after it, such
    as a marker that names it, is never there without it.

    Returns False where it was taken; the attempt's file is then removed.
    """
    attempt.filesystem.sync(attempt.path)
    try:
        attempt.filesystem.rename_new(attempt.path, final.path)
    except FileExistsError:
        attempt.delete()
        return False
    final.filesystem.sync_folder(final.parent.path)
    return True


def publish_bytes(final: Place, attempts: Place, data: bytes) -> OutputFile:
    """Publish a file of ``data``."""
    with publishing(final, attempts) as output:
        output.write(data)
    return output


@contextmanager
def replacing(final: Place, attempts: Place) -> Iterator[OutputFile]:
    """Write ``final`` anew: after the block it has these bytes, in one atomic step, whether it was there or not.

    It is untouched when the block raises. Raises ReplacedError where ``attempts`` is gone.
    """
    with _attempt(final, attempts) as (attempt, output):
        yield output
        output.stream.close()
        _replace(attempt, final)


def replace_bytes(final: Place, attempts: Place, data: bytes) -> None:
    """Put a file of ``data`` in the place of ``final``, in one atomic step, whether it is there or not."""
    with replacing(final, attempts) as output:
        output.write(data)


def withdraw(final: Place, attempts: Place) -> None:
    """Take the file or folder ``final`` away, by way of the folder ``attempts``; it may be gone already.

    One atomic step moves it there, so that what another run, which took over a moment ago, put in its place is safe.

    Raises ReplacedError where ``attempts`` is gone: who was replaced takes nothing away.
    """
    attempt = _own_name(attempts)
    try:
        final.filesystem.replace(final.path, attempt.path)
    except FileNotFoundError:
        if not attempts.exists():
            raise ReplacedError(f"{final} was not removed: another run has taken this stage over") from None
        return
    attempt.delete()


def replace_file(made: Place, final: Place) -> None:
    """Put the finished file ``made`` in the place of ``final``, in one atomic step, whether that is there or not."""
    final.parent.make_folder()
    _replace(made, final)


def _replace(made: Place, final: Place) -> None:
    made.filesystem.sync(made.path)
    made.filesystem.replace(made.path, final.path)
    final.filesystem.sync_folder(final.parent.path)

"""Exceptions by exit status, and the line that a user sees for each.

Status 0 done, 1 the data falls short, 2 wrong use, 3 the environment fails, 130 interrupted.
"""

import errno
import os
import sys
import traceback
from contextlib import suppress

INTERRUPTED = 130
ERROR_PREFIX = "ringslice: error: "  # of the line that says why a process ended
DEBUG_VARIABLE = "RINGSLICE_DEBUG"

LIBHDFS_FAILED = 255  # libhdfs's errno for an exception of Java that has none

_REMEDIES = {
    errno.ENOSPC: "free some space or choose another place",
    errno.EDQUOT: "the quota is used up: free some space or choose another place",
    errno.EACCES: "check the permissions of the user that runs this",
    errno.EPERM: "check the permissions of the user that runs this",
    errno.EROFS: "the filesystem is read-only: choose another place",
    errno.ENOENT: "check the path, or choose another place",
    errno.ENOTDIR: "check the path, or choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EPIPE: "what read the output, or the server, has ended",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    LIBHDFS_FAILED: "look at: hdfs dfsadmin -report; --debug shows what Java says",
}


class RingsliceError(Exception):
    """A failure that is reported to the user in one line and ends the process with ``status``.

    ``is_reported`` is set if another process has reported it already. The message is `printable`, because it may
    contain names and texts of damaged files; some list what they found in further lines.
    """

    status = 1
    is_reported = False

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str, kept: str = "\n") -> str:
    """``text`` with what a terminal obeys and does not show escaped as Python does, except the characters ``kept``."""
    return "".join(each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in text)


class DataError(RingsliceError):
    """The data falls short: damaged, too few, too many rejects."""

    status = 1


class UsageError(RingsliceError):
    """The command was asked for something that cannot be: a wrong option, place or combination."""

    status = 2


class EnvironmentFailure(RingsliceError):
    """The machine or cluster fails: a full disk, a lost service, a missing tool."""

    status = 3


ERRORS: dict[int, type[RingsliceError]] = {each.status: each for each in (DataError, UsageError, EnvironmentFailure)}

_NO_THREAD = "can't start new thread"  # of Python's threading
_NO_MEMORY_TO_LOAD = "failed to map segment"  # of glibc's loader (dl-map-segments.h)


def explain(error: BaseException) -> tuple[int, str] | None:
    """The exit status and the line for ``error``; None for one that is a defect of ours."""
    if isinstance(error, RingsliceError):
        return error.status, str(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted; run the same command to resume"
    if isinstance(error, OSError) and not isinstance(error, ValueError):  # both: io.UnsupportedOperation, a defect
        code = error.errno or 0
        text = (str(error) or type(error).__name__).splitlines()[0].removeprefix(f"[Errno {code}] ")
        text = text.partition(". Detail:")[0]  # pyarrow appends it
        what = os.strerror(code) if code and code != LIBHDFS_FAILED else text
        where = f": {error.filename or text}" if code and what != text else ""
        remedy = f" ({_REMEDIES[code]})" if code in _REMEDIES else ""
        kind = UsageError if code == errno.ENAMETOOLONG else EnvironmentFailure
        return kind.status, printable(f"{what}{where}{remedy}", "")
    if isinstance(error, MemoryError):
        return EnvironmentFailure.status, "out of memory (use smaller packs or fewer processes at once)"
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return EnvironmentFailure.status, f"{_NO_THREAD} (raise the limit: ulimit -v)"
    if isinstance(error, ImportError) and _NO_MEMORY_TO_LOAD in str(error):
        library = str(error).partition(":")[0].rpartition("/")[2]
        return EnvironmentFailure.status, f"no memory to load {library} (raise the limit: ulimit -v)"
    return None


def reason_of(error: BaseException) -> str:
    """The line for ``error``; of a defect of ours its own message."""
    _, line = explain(error) or (1, str(error))
    return line


def is_debug() -> bool:
    """True if `DEBUG_VARIABLE`, which --debug sets, asks for tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "").lower() not in ("", "0", "f", "false", "n", "no", "off")


def report(error: BaseException, prefix: str = "", note: str = "") -> int:
    """Print the line for ``error`` (a traceback if it is a defect of ours) to standard error; returns the status.

    ``prefix`` (a rank, for example) goes before the line, ``note`` behind it.
    """
    explained = explain(error)
    if explained is None:
        traceback.print_exception(error)
        return 1
    status, line = explained
    if is_debug():
        with suppress(OSError):
            traceback.print_exception(error)
    if not getattr(error, "is_reported", False):
        with suppress(OSError):  # standard error may be what is full
            print(f"{ERROR_PREFIX}{prefix}{line}{note}", file=sys.stderr, flush=True)
    return status


def require_utf8(what: str, text: str) -> None:
    """Raise UsageError if ``text``, from the system, has bytes that are not UTF-8: Arrow does not take such names."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{what} is not UTF-8: {os.fsencode(text)!r}. Rename the file or folder, or name another"
        ) from None

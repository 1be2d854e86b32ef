"""How a command begins and ends: signals, standard streams, exit status."""

import codecs
import fcntl
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from etl.errors import EnvironmentFailure, report, require_utf8
from etl.processes import tie_to_parent, unblock_interrupts

RAISE_AGAIN_S = 0.01


def end_process(status: int) -> NoReturn:
    """End this process now, once what it printed is out.

    Clients of HDFS leave threads behind (Arrow's, a JVM's) that take Python's end badly: they abort, or never end.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads it any more
            pass
    os._exit(status)


def _is_read_only(number: int) -> bool:
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def _open_closed_streams() -> None:
    """Connect standard streams that the caller closed to /dev/null, so that no file gets their numbers.

    If bash runs a wrapper script without standard error, the script itself, open for reading, has its number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None or (number and _is_read_only(number)):
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _raise_swallowed_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python's ``unraisablehook``, for an exception that it ignores, as one in a callback of an import.

    An interrupt that is lost this way comes again, as SIGALRM: in here it would be ignored as well.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, RAISE_AGAIN_S)
    else:
        sys.__unraisablehook__(unraisable)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: characters that the output's encoding lacks are escaped as in JSON, so JSON remains JSON."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end], allow_nan=False)[1:-1], error.end


def run_reporting(main: Callable[[], int]) -> int:
    """Run ``main`` and return its exit status; a failure becomes one line on standard error and its status.

    SIGTERM counts as an interrupt, so that schedulers stop a command as cleanly as Ctrl-C does. No interrupt is lost.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one interrupt is enough; do not disturb the cleaning up
        raise KeyboardInterrupt

    for each in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(each, interrupt)
    sys.unraisablehook = _raise_swallowed_again
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # a shell may have had us ignore it
        signal.signal(signal.SIGINT, interrupt)
    _open_closed_streams()
    codecs.register_error("ringslice", _escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # of names of classes that the output cannot encode
            stream.reconfigure(errors="ringslice")
    try:
        unblock_interrupts()
        tie_to_parent()
        if sys.getfilesystemencoding() != "utf-8":
            raise EnvironmentFailure("names of files are not UTF-8 in this locale. Set LC_ALL=C.UTF-8, or PYTHONUTF8=1")
        for word in sys.argv[1:]:
            require_utf8("an argument", word)
        return main()
    except SystemExit as error:  # argparse's, or a child's status that was reported already
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except (Exception, KeyboardInterrupt) as error:
        return report(error)

"""How this package starts the others: as child processes, stopped with us, whose exit status is ours."""

import ctypes
import functools
import signal
import subprocess
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None)  # loaded now: between a fork and its exec only a system call is safe


def end_with_parent(number: int) -> None:
    """Have this process get the signal ``number`` when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


STOP_TIMEOUT_S = 20.0


def run_module(module: str, arguments: Sequence[str], capture: bool = False) -> tuple[int, str]:
    """Run ``python -m module arguments`` to its end; returns its exit status and, where asked, its output.

    Ctrl-C reaches the child too, for it is in our process group; SIGTERM, which only we get, is handed on. Either way
    this waits until the child has cleaned up, and ends it for good after `STOP_TIMEOUT_S`. Where we are killed, so is
    the child.
    """
    words, output = [sys.executable, "-m", module, *arguments], subprocess.PIPE if capture else None
    tied = functools.partial(end_with_parent, signal.SIGKILL)
    with subprocess.Popen(words, stdout=output, text=True, preexec_fn=tied) as child:
        try:
            text, _ = child.communicate()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGTERM)
            try:
                text, _ = child.communicate(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                raise KeyboardInterrupt from None
            if child.returncode == 0:  # it was done before the signal came
                raise
        status = child.returncode
    return (status if status >= 0 else 128 - status), text or ""

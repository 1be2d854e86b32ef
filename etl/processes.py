"""Child processes that end with their parent and begin with interrupts blocked; replacing of this process."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None)  # loaded now: between a fork and its exec only a system call is safe
_PARENT = "RINGSLICE_PARENT"


def end_with_parent(number: int, parent: int) -> None:
    """Have this process get the signal ``number`` when the thread of ``parent`` that started it ends (prctl(2)).

    It gets the signal now if the parent has ended already.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def tied_environment(number: int, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment of a child that calls `tie_to_parent` first, so that it gets the signal ``number`` when we end.

    A ``preexec_fn`` would do the same, but runs Python between fork and exec, in a process that may have threads.
    """
    return {**variables, _PARENT: f"{os.getpid()} {int(number)}"}


def tie_to_parent() -> None:
    """In a child with a `tied_environment`: `end_with_parent`.

    A value of the variable that we did not write is ignored.
    """
    tied = re.fullmatch("([0-9]{1,9}) ([0-9]{1,9})", os.environ.pop(_PARENT, ""))
    if tied and (number := int(tied[2])) in signal.valid_signals():
        end_with_parent(number, int(tied[1]))


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Have children that are started meanwhile begin with SIGINT and SIGTERM blocked, until `unblock_interrupts`.

    An interrupt while a child imports its modules would end it with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_interrupts() -> None:
    """Let interrupts come, now that they have handlers; one that came while they were blocked comes now."""
    for number in _INTERRUPTS:  # one by one: the handler of the first may have the next ignored
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def exec_module(module: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by ``python -P -m module arguments``, which begins with interrupts blocked.

    With -P, files of the current folder that are named like modules are not imported.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606


def stop_all(processes: Sequence[subprocess.Popen[bytes]], number: int, timeout_s: float) -> None:
    """End processes by the signal ``number``, and after ``timeout_s`` by SIGKILL."""
    try:
        for process in processes:
            process.send_signal(number)
        deadline = time.monotonic() + timeout_s
        with suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also after a second interrupt
        for process in processes:
            process.kill()
        for process in processes:
            with suppress(subprocess.TimeoutExpired):  # one that waits for storage that is gone
                process.wait(timeout_s)

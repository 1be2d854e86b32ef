"""How this package starts the others: as child processes, stopped with us, whose exit status is ours."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

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


STOP_TIMEOUT_S = 20.0


def run_module(module: str, arguments: Sequence[str], capture: bool = False) -> tuple[int, str]:
    """Run ``python -P -m module arguments`` to its end; returns its exit status and, if asked, its output.

    With -P, files of the current folder that are named like modules are not imported.

    Ctrl-C reaches the child too, because it is in our process group; SIGTERM, which only we get, is passed on. Either
    way this waits until the child has cleaned up, and kills it after `STOP_TIMEOUT_S`. If we are killed, so is the
    child. There is no limit on its time: a job may take days, and its own parts have limits.
    """
    words, output = [sys.executable, "-P", "-m", module, *arguments], subprocess.PIPE if capture else None
    with block_interrupts():
        child = subprocess.Popen(words, stdout=output, text=True, env=tied_environment(signal.SIGKILL))
    with child:
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
            process.wait()  # ends: nothing holds back SIGKILL

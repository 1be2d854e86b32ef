"""Looking at what may crash or hang: in a child process, or a thread, that has so many seconds and no more."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from etl.errors import EnvironmentFailure

STOP_TIMEOUT_S = 5.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ended:
    """How a child process ended; ``status`` is negative after a signal."""

    status: int
    output: str
    errors: str
    timeout_s: float | None = None

    @property
    def complaint(self) -> str:
        """Why it did not end well: its own error line, if it has one."""
        if self.timeout_s is not None:
            return f"did not end within {self.timeout_s:.0f} s"
        if self.status < 0:
            return f"crashed ({signal.Signals(-self.status).name})"
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("ringslice: error: ")]
        last = (told or lines or [f"ended with status {self.status} and said nothing"])[-1]
        return last.removeprefix("ringslice: error: ")


def run_within(
    timeout_s: float, words: Sequence[str], variables: Mapping[str, str] | None = None, cwd: str | None = None
) -> Ended:
    """Run a program to its end, or to ours: after ``timeout_s``, or an interrupt, it and all its children are stopped.

    It is asked to stop first, so that it can clean up. ``variables`` are its whole environment. Raises
    FileNotFoundError where there is no such program.
    """
    child = subprocess.Popen(
        words,
        env=variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # what it starts is stopped with it, and Ctrl-C reaches it by us only
    )
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        output, errors = _stop(child)
        return Ended(child.returncode, output, errors, timeout_s)
    except BaseException:
        _stop(child)
        raise
    return Ended(child.returncode, output, errors)


def run_python(timeout_s: float, words: Sequence[str], **variables: str) -> Ended:
    """Run this Python in this environment with ``variables`` added."""
    return run_within(timeout_s, [sys.executable, "-P", *words], os.environ | variables)


def call_within(timeout_s: float, function: Callable[[], Result]) -> Result:
    """What ``function`` returns or raises; raises EnvironmentFailure where it takes longer than ``timeout_s``.

    It then goes on in its thread, which does not keep this process from ending.
    """
    answers: queue.SimpleQueue[tuple[Result | None, Exception | None]] = queue.SimpleQueue()

    def call() -> None:
        try:
            answers.put((function(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    try:
        result, error = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise EnvironmentFailure(f"no answer within {timeout_s:.0f} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where the function's own result is


def _stop(child: subprocess.Popen[str]) -> tuple[str, str]:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass
        try:
            return child.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    return "", ""  # stuck in the kernel (a dead network disk): no signal ends it

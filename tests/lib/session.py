"""A command in a session of its own, to be sent signals. None outlives its test."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.hadoop.processes import Process, find_all
from tests.lib.commands import PATIENCE_S, REPOSITORY, environment, wait_until

POLL_S = 0.005


class Session:
    """``log`` gets the standard error of the command."""

    all: ClassVar[list["Session"]] = []
    timeout_s: float = PATIENCE_S

    def __init__(self, log: Path, *words: object, **variables: str) -> None:
        self._log, self._mark = log, f"SESSION={log}"
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in words],
                cwd=REPOSITORY,
                env=environment(**variables, SESSION=str(log)),
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self.all.append(self)

    def errors(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(self.timeout_s)

    def wait_until(self, what: str, is_there: Callable[[], object]) -> None:
        wait_until(is_there, self.process, self.timeout_s, POLL_S, lambda: f"no {what}: {self.errors()}")

    def processes(self, word: str = "") -> list[Process]:
        """Those that it started and that are alive, and itself; with ``word`` those with this in their command line."""
        return find_all(lambda words, its: self._mark.encode() in its and (not word or word.encode() in words))

    def send_all(self, number: int) -> None:
        os.killpg(self.process.pid, number)


@pytest.fixture
def end_sessions() -> Iterator[None]:
    yield
    for each in Session.all:
        with contextlib.suppress(ProcessLookupError):
            each.send_all(signal.SIGKILL)
        each.process.wait()
    Session.all.clear()

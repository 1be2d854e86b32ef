"""A command in a session of its own, to be sent signals. None outlives its test."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest

from tests.hadoop.processes import Process, find_all
from tests.lib.commands import PATIENCE_S, wait_until
from tests.lib.ranks.running import spawn

POLL_S = 0.005
T = TypeVar("T")


class Session:
    """``log`` gets the output of the command."""

    stack: ClassVar = ExitStack()
    timeout_s: float = PATIENCE_S

    def __init__(self, log: Path, *words: object, **variables: str) -> None:
        self._log = log
        self.process = self.stack.enter_context(spawn(*words, log=log, **variables))

    def errors(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(self.timeout_s)

    def wait_until(self, what: str, is_there: Callable[[], T]) -> T:
        return wait_until(is_there, self.process, self.timeout_s, POLL_S, lambda: f"no {what}: {self.errors()}")

    def processes(self, word: str = "") -> list[Process]:
        """Those that it started and that are alive, and itself; with ``word`` those with this in their command line."""
        mark = f"MARK={self._log}".encode()
        return find_all(lambda words, its: mark in its and (not word or word.encode() in words))

    def send_all(self, number: int) -> None:
        os.killpg(self.process.pid, number)


@pytest.fixture
def end_sessions() -> Iterator[None]:
    yield
    Session.stack.close()

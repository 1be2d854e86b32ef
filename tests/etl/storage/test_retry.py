"""Which calls are tried again, how often, and for how long."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from etl.errors import EnvironmentFailure
from etl.storage import retry
from etl.storage.hdfs import is_transient
from etl.storage.hdfs_errors import HdfsFailure
from etl.storage.retry import PATIENCE_S, PAUSES_S, retrying

Call = Callable[[], int]


class Clock:
    """Time that passes only during pauses and calls."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(retry, "time", found)
    return found


def failing(clock: Clock, failures: int, takes_s: float = 0, error: type[Exception] = ConnectionError) -> Call:
    """A call that fails so many times, each taking so long, then returns its number."""
    numbers = count(1)

    def call() -> int:
        number = next(numbers)
        clock.now_s += takes_s
        if number <= failures:
            raise error(f"failure {number}")
        return number

    return call


def lost(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


@pytest.mark.parametrize("failures", [0, 1, len(PAUSES_S)])
def test_what_passes_is_tried_again_with_growing_pauses(failures: int, clock: Clock) -> None:
    assert retrying(failing(clock, failures), lost) == failures + 1
    assert clock.pauses_s == list(PAUSES_S[:failures]) == sorted(clock.pauses_s)


@pytest.mark.parametrize(
    ("call", "calls"),
    [
        ({}, len(PAUSES_S) + 1),
        ({"error": FileNotFoundError}, 1),  # is not transient
        ({"takes_s": PATIENCE_S + 1}, 1),
        ({"takes_s": PATIENCE_S / 2}, 2),
    ],
)
def test_it_gives_up_after_some_calls(call: dict[str, Any], calls: int, clock: Clock) -> None:
    with pytest.raises((ConnectionError, FileNotFoundError), match=f"failure {calls}$"):
        retrying(failing(clock, 99, **call), lost)
    assert clock.pauses_s == list(PAUSES_S[: calls - 1])


def test_of_hdfs_only_what_may_pass_is_tried_again() -> None:
    assert is_transient(HdfsFailure("the NameNode starts", transient=True))
    assert not is_transient(HdfsFailure("permission denied"))
    assert not is_transient(EnvironmentFailure("another run has taken over"))
    assert not is_transient(FileNotFoundError(2, "gone"))

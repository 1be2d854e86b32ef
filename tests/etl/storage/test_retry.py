"""Trying again: what, how often, and not for long."""

import pytest

from etl.errors import EnvironmentFailure
from etl.storage import retry
from etl.storage.hdfs import is_transient
from etl.storage.hdfs_errors import HdfsFailure
from etl.storage.retry import PATIENCE_S, PAUSES_S, retrying


class Clock:
    """Time that passes only where someone sleeps, or a call takes long."""

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


class Call:
    """Fails so many times, each taking so long, then returns its number."""

    def __init__(
        self, clock: Clock, failures: int, takes_s: float = 0, error: type[Exception] = ConnectionError
    ) -> None:
        self.clock, self.failures, self.takes_s, self.error = clock, failures, takes_s, error
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        self.clock.now_s += self.takes_s
        if self.count <= self.failures:
            raise self.error(f"failure {self.count}")
        return self.count


def lost(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


@pytest.mark.parametrize("failures", range(len(PAUSES_S) + 1))
def test_what_passes_is_tried_again_with_growing_pauses(failures: int, clock: Clock) -> None:
    assert retrying(Call(clock, failures), lost) == failures + 1
    assert clock.pauses_s == list(PAUSES_S[:failures]) == sorted(clock.pauses_s)


def test_what_does_not_pass_is_told_at_last(clock: Clock) -> None:
    call = Call(clock, 99)
    with pytest.raises(ConnectionError, match=f"failure {len(PAUSES_S) + 1}"):
        retrying(call, lost)
    assert clock.pauses_s == list(PAUSES_S)


def test_other_failures_are_told_at_once(clock: Clock) -> None:
    call = Call(clock, 99, error=FileNotFoundError)
    with pytest.raises(FileNotFoundError, match="failure 1"):
        retrying(call, lost)
    assert clock.pauses_s == []


def test_a_call_that_took_long_is_not_repeated(clock: Clock) -> None:
    call = Call(clock, 99, takes_s=PATIENCE_S + 1)
    with pytest.raises(ConnectionError, match="failure 1"):
        retrying(call, lost)
    slow = Call(clock, 99, takes_s=PATIENCE_S / 2)
    with pytest.raises(ConnectionError, match="failure 2"):
        retrying(slow, lost)


def test_without_pauses_there_is_one_call(clock: Clock) -> None:
    call = Call(clock, 1)
    with pytest.raises(ConnectionError):
        retrying(call, lost, pauses_s=())
    assert call.count == 1


def test_of_hdfs_only_what_may_pass_is_tried_again() -> None:
    assert is_transient(HdfsFailure("the NameNode starts", transient=True))
    assert not is_transient(HdfsFailure("permission denied"))
    assert not is_transient(EnvironmentFailure("another run has taken over"))
    assert not is_transient(FileNotFoundError(2, "gone"))

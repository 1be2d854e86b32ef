"""Claims within one process: whose they are, and what an owner does that lost its own."""

import errno
import threading
import time
from pathlib import Path

import pytest

from etl.errors import EnvironmentFailure
from etl.stages import lease
from etl.stages.lease import BusyError, Lease, Owner
from etl.storage.place import Place, open_place
from tests.etl.conftest import names_below
from tests.etl.stages.test_stage import pose_as_ended_process
from tests.lib.commands import PATIENCE_S

NEVER_S = 3600.0  # no heart beats of itself within a test
NO_PROCESS = 1 << 30  # above the kernel's largest number


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEWAL_INTERVAL_S", 0.05)
    monkeypatch.setattr(lease, "LEASE_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
def work(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "_work"))


def take(work: Place) -> Lease:
    return Lease.take(work, "the stage")


def take_elsewhere(work: Place) -> Lease:
    """The lease of a process on another host, whose number none has here; this process renews it."""
    owner = Owner("elsewhere/boot/pid:[1]", NO_PROCESS, "17")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease.Owner, "this_process", classmethod(lambda cls: owner))
        return take(work)


def test_an_owner_on_another_host_lives_while_its_heart_beats(work: Place) -> None:
    """Its process cannot be looked for here, where there is none of its number."""
    owner = take_elsewhere(work)
    with pytest.raises(BusyError, match=rf"is locked by process {NO_PROCESS} on elsewhere"):
        take(work)
    owner.check()
    owner.release()


def test_an_owner_on_another_host_may_end_while_it_is_watched(work: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = take_elsewhere(work)
    monkeypatch.setattr(time, "sleep", lambda _: owner.release())
    take(work).release()


@pytest.mark.parametrize("is_higher", [False, True])
def test_a_number_that_is_published_late_is_no_claim(
    is_higher: bool, work: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking and publishing two others had the stage: the second of them has it still. The number is lower
    than its own if the first one was killed, and higher if that ended, because numbers come again.
    """
    require_dead = lease._require_dead
    winners: list[Lease] = []

    def require_and_sleep(*arguments: object) -> tuple[int, set[bytes]]:
        found = require_dead(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(lease, "_require_dead", require_dead)
        if is_higher:
            take(work).delete_work()
        else:
            with pose_as_ended_process():
                take(work)
        winners.append(take(work))
        return found

    with pose_as_ended_process():
        take(work)
    monkeypatch.setattr(lease, "_require_dead", require_and_sleep)
    with pytest.raises(BusyError, match="is locked by process"):
        take(work)
    (winner,) = winners
    winner.check()
    assert [name for name in names_below(work) if name.startswith("driver-")] == [winner.staging.name]
    with pytest.raises(BusyError):
        take(work)
    winner.release()


def test_who_lost_the_claim_does_not_renew_that_of_its_number(work: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It slept; others came and went, and its number is another's by now."""
    monkeypatch.setattr(lease, "RENEWAL_INTERVAL_S", NEVER_S)
    with pose_as_ended_process():
        sleeper = take(work)
    take(work).release()
    owner = take(work)
    assert owner.number == sleeper.number
    place = work / f"claims/{owner.number:06d}.json"
    before = place.info().mtime_ns
    monkeypatch.setattr(lease, "RENEWAL_INTERVAL_S", 0.01)
    wakes = threading.Thread(target=sleeper._renew, daemon=True)
    wakes.start()
    wakes.join(PATIENCE_S)
    assert not wakes.is_alive()
    assert place.info().mtime_ns == before
    with pytest.raises(EnvironmentFailure, match="another run has taken over"):
        sleeper.check()
    sleeper.stop_renewing()
    owner.check()
    owner.release()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "for a moment"), EnvironmentFailure("the NameNode is away")])
def test_renewal_goes_on_after_a_failed_touch(error: Exception, work: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    held, touched = take(work), 0

    def touch(path: str) -> None:
        nonlocal touched
        touched += 1
        if touched == 1:
            raise error
        held._stopped.set()

    monkeypatch.setattr(held._place.filesystem, "touch", touch)
    held._renewer.join(120)
    assert touched == 2
    held.check()
    held.release()

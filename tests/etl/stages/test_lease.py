"""One run at a time on a stage, and one that was replaced writes nothing more: with real processes and signals."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from etl.errors import EnvironmentFailure
from etl.stages import lease
from etl.stages.lease import Lease
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place
from tests.etl.conftest import names_below
from tests.lib.commands import REPOSITORY

pytestmark = pytest.mark.integration

RENEWAL_INTERVAL_S, LEASE_TIMEOUT_S = 0.2, 2.0
ELSEWHERE = "elsewhere/boot/pid:[1]"

HOLDER = textwrap.dedent(
    """
    import sys
    from etl.stages import lease
    from etl.entry_point import end_process, run_reporting
    from etl.storage.atomic import publish_bytes
    from etl.storage.place import open_place

    lease.RENEWAL_INTERVAL_S, lease.LEASE_TIMEOUT_S = float(sys.argv[3]), float(sys.argv[4])
    if host := sys.argv[2]:
        lease._host = lambda: host

    def main():
        root = open_place(sys.argv[1])
        held = lease.Lease.take(root / "_work", "the stage")
        print("has it", flush=True)
        for word in map(str.strip, sys.stdin):
            if word == "release":
                held.release()
            else:
                publish_bytes(root / word, held.staging, b"late")
            print("done", flush=True)
        return 0

    end_process(run_reporting(main))
    """
)


class Holder:
    all: list["Holder"] = []

    def __init__(self, root: Place, host: str = "") -> None:
        words = [sys.executable, "-c", HOLDER, root.uri, host, str(RENEWAL_INTERVAL_S), str(LEASE_TIMEOUT_S)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.all.append(self)

    def has_it(self) -> "Holder":
        assert self.answer() == "has it", self.end()
        return self

    def send(self, word: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=300)
        return self.process.returncode, errors

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short times, and no holder that outlives its test."""
    monkeypatch.setattr(lease, "RENEWAL_INTERVAL_S", RENEWAL_INTERVAL_S)
    monkeypatch.setattr(lease, "LEASE_TIMEOUT_S", LEASE_TIMEOUT_S)
    yield
    for holder in Holder.all:
        holder.process.kill()
        holder.process.communicate()
    Holder.all.clear()


@pytest.fixture
def work(root: Place) -> Place:
    return root / "_work"


def take(work: Place) -> Lease:
    return Lease.take(work, "the stage")


@pytest.mark.witness
def test_the_second_run_is_refused_and_the_first_is_named(root: Place, work: Place) -> None:
    holder = Holder(root).has_it()
    who = f"process {holder.process.pid} on {socket.gethostname()}"
    with pytest.raises(EnvironmentFailure) as caught:
        take(work)
    assert str(caught.value) == f"the stage is locked by {who}; wait for it, or stop it, and run again"
    assert Holder(root).end() == (3, f"ringslice: error: {caught.value}\n")
    os.kill(holder.process.pid, signal.SIGSTOP)  # asleep, not dead
    with pytest.raises(EnvironmentFailure, match="is locked by"):
        take(work)
    os.kill(holder.process.pid, signal.SIGCONT)
    assert holder.send("release") == "done"
    assert names_below(work) == ["claims"]
    take(work).release()
    assert names_below(work) == ["claims"]


def test_what_a_run_left_that_was_killed_at_its_end_goes_with_the_next(work: Place) -> None:
    (work / "driver-000005-ab").make_folder()
    held = take(work)
    assert held.number == 6
    held.delete_work()
    assert not work.exists()


def test_a_damaged_lease_is_named(work: Place) -> None:
    work.make_folder()
    for damaged in (b"", b"{}", b"[1]"):
        replace_bytes(work / "claims/000001.json", work, damaged)
        with pytest.raises(EnvironmentFailure, match=r"000001.json is damaged; if nothing is at work on the stage"):
            take(work)


@pytest.mark.witness
def test_the_dead_are_succeeded_without_waiting(root: Place, work: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zombie is dead too, although /proc still has its number and start time."""
    holder = Holder(root).has_it()
    holder.process.kill()
    os.waitid(os.P_PID, holder.process.pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(lease, "LEASE_TIMEOUT_S", 1e6)
    held = take(work)
    assert held.number == 2
    assert names_below(work) == ["claims", "claims/000002.json", held.staging.name]
    held.check()
    held.release()


@pytest.mark.witness
def test_who_slept_too_long_writes_nothing_more(root: Place, work: Place) -> None:
    holder = Holder(root, ELSEWHERE).has_it()
    os.kill(holder.process.pid, signal.SIGSTOP)
    held = take(work)
    assert held.number == 2
    os.kill(holder.process.pid, signal.SIGCONT)
    assert holder.send("late") == ""
    status, errors = holder.end()
    assert (status, errors.startswith("ringslice: error: "), errors.count("\n")) == (3, True, 1)
    assert "late was not written: another run has taken this stage over" in errors
    assert names_below(root) == ["_work", "_work/claims", "_work/claims/000002.json", f"_work/{held.staging.name}"]
    held.check()
    held.release()


@pytest.mark.witness
def test_of_many_successors_one_wins(root: Place, work: Place) -> None:
    for _ in range(2):
        holder = Holder(root).has_it()
        holder.process.kill()
        holder.process.wait()

        def attempt(_: int) -> Lease | None:
            try:
                return take(work)
            except EnvironmentFailure:
                return None

        with ThreadPoolExecutor(6) as pool:
            (held,) = filter(None, pool.map(attempt, range(6)))
        held.check()
        assert names_below(work) == ["claims", f"claims/{held.number:06d}.json", held.staging.name]
        held.release()

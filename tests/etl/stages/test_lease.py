"""One run at a time on a stage, and one that was replaced writes nothing more: with real processes and signals."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from etl.errors import EnvironmentFailure
from etl.stages import lease
from etl.stages.lease import Claim
from etl.storage.place import Place, open_place
from tests.lib.commands import REPOSITORY, contents, environment, failed, ringslice, succeeded

pytestmark = pytest.mark.integration

HEARTBEAT_S, PATIENCE_S = 0.2, 1.0
ELSEWHERE = "elsewhere/boot/pid:[1]"

HOLDER = textwrap.dedent(
    """
    import sys
    from etl.stages import lease
    from etl.errors import end_process, run_reporting
    from etl.storage.atomic import publish_bytes
    from etl.storage.place import open_place

    lease.HEARTBEAT_S, lease.PATIENCE_S = float(sys.argv[3]), float(sys.argv[4])
    if host := sys.argv[2]:
        lease._host = lambda: host

    def main():
        root = open_place(sys.argv[1])
        claim = lease.Claim.take(root / "_work", "the stage")
        print("holds", flush=True)
        for word in map(str.strip, sys.stdin):
            if word == "check":
                claim.check()
            elif word == "release":
                claim.release()
            else:
                publish_bytes(root / word, claim.attempts, b"late")
            print("done", flush=True)
        return 0

    end_process(run_reporting(main))
    """
)


class Holder:
    """A process that takes a claim, and then does what it is told."""

    all: list["Holder"] = []

    def __init__(self, root: Place, host: str = "") -> None:
        words = [sys.executable, "-c", HOLDER, root.uri, host, str(HEARTBEAT_S), str(PATIENCE_S)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.all.append(self)

    def holds(self) -> "Holder":
        assert self.answer() == "holds", self.end()
        return self

    def told(self, word: str) -> str:
        """What it says once it was told to do something; empty where it ended."""
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> tuple[int, str]:
        """Its status and what it told."""
        _, errors = self.process.communicate(timeout=300)
        return self.process.returncode, errors

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@pytest.fixture(autouse=True)
def end_holders() -> Iterator[None]:
    yield
    for holder in Holder.all:
        holder.process.kill()
        holder.process.communicate()
    Holder.all.clear()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_S", HEARTBEAT_S)
    monkeypatch.setattr(lease, "PATIENCE_S", PATIENCE_S)


@pytest.fixture
def work(root: Place) -> Place:
    return root / "_work"


def names(folder: Place) -> list[str]:
    return [info.path.removeprefix(folder.path + "/") for info in folder.children(recursive=True)]


def take(work: Place) -> Claim:
    return Claim.take(work, "the stage")


@pytest.mark.witness
def test_one_has_it_and_the_other_is_told_who(root: Place, work: Place) -> None:
    holder = Holder(root).holds()
    who = f"process {holder.process.pid} on {socket.gethostname()}"
    with pytest.raises(EnvironmentFailure) as caught:
        take(work)
    assert str(caught.value) == f"the stage is at work already ({who}); wait for it, or end it, and run again"
    other = Holder(root)
    status, errors = other.end()
    assert (status, errors) == (3, f"ringslice: error: {caught.value}\n")
    os.kill(holder.process.pid, signal.SIGSTOP)  # asleep, not dead
    with pytest.raises(EnvironmentFailure, match="at work already"):
        take(work)
    os.kill(holder.process.pid, signal.SIGCONT)
    assert holder.told("release") == "done"
    assert names(work) == ["claims"]
    take(work).release()
    assert names(work) == ["claims"]


@pytest.mark.witness
def test_the_dead_are_succeeded_without_waiting(root: Place, work: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder(root).holds()
    holder.process.kill()
    holder.process.wait()
    monkeypatch.setattr(lease, "PATIENCE_S", 120.0)
    begin = time.monotonic()
    claim = take(work)
    assert time.monotonic() - begin < lease.PATIENCE_S
    assert claim.number == 2
    assert names(work) == ["claims", "claims/000002.json", claim.attempts.name]
    claim.check()
    claim.release()


def test_a_zombie_is_succeeded(tmp_path: Path) -> None:
    """Of such a process /proc still has the number and the start time."""
    place = open_place(str(tmp_path))
    holder = Holder(place).holds()
    holder.process.kill()
    os.waitid(os.P_PID, holder.process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    claim = take(place / "_work")
    assert claim.number == 2
    claim.release()


@pytest.mark.witness
@pytest.mark.parametrize("word", ["late", "check"])
def test_who_slept_too_long_writes_nothing_more(word: str, root: Place, work: Place) -> None:
    holder = Holder(root, ELSEWHERE).holds()
    os.kill(holder.process.pid, signal.SIGSTOP)
    claim = take(work)
    assert claim.number == 2
    os.kill(holder.process.pid, signal.SIGCONT)
    assert holder.told(word) == ""
    status, errors = holder.end()
    assert status == 3
    message = "late was not written: another run has taken this stage over" if word == "late" else "has taken over"
    assert errors.startswith("ringslice: error: ")
    assert message in errors
    assert errors.count("\n") == 1
    assert names(root) == ["_work", "_work/claims", "_work/claims/000002.json", f"_work/{claim.attempts.name}"]
    claim.check()
    claim.release()


@pytest.mark.witness
def test_of_many_successors_one_wins(root: Place, work: Place) -> None:
    for _ in range(2):
        holder = Holder(root).holds()
        holder.process.kill()
        holder.process.wait()

        def attempt(_: int) -> Claim | None:
            try:
                return take(work)
            except EnvironmentFailure:
                return None

        with ThreadPoolExecutor(6) as pool:
            (claim,) = filter(None, pool.map(attempt, range(6)))
        claim.check()
        assert names(work) == ["claims", f"claims/{claim.number:06d}.json", claim.attempts.name]
        claim.release()


# --- whole commands ---


@pytest.fixture
def stopped_ingest(digits: Path, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`ringslice ingest`, stopped in its tracks once it has the claim."""
    words = ["ringslice", "ingest", str(digits), str(tmp_path / "root"), "--pack-size", "4KB"]
    process = subprocess.Popen(words, env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob("root/raw/_work/claims/*.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("ends", ["goes on", "is killed"])
def test_ingest_twice_at_once(
    ends: str, stopped_ingest: "subprocess.Popen[bytes]", digits: Path, tmp_path: Path
) -> None:
    root, words, first = tmp_path / "root", ("ingest", digits), stopped_ingest
    second = ringslice(*words, root, "--pack-size", "4KB")
    who = f"process {first.pid} on {socket.gethostname()}"
    failed(second, 3, f"ringslice ingest on {root}/raw is at work already ({who}); wait for it, or end it")
    if ends == "is killed":
        first.kill()
        first.wait()
        succeeded(ringslice(*words, root, "--pack-size", "4KB"))
    else:
        first.send_signal(signal.SIGCONT)
        assert first.wait(300) == 0
    succeeded(ringslice(*words, tmp_path / "alone", "--pack-size", "4KB"))
    assert contents(root / "raw", "run.json") == contents(tmp_path / "alone" / "raw", "run.json")

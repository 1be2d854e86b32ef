"""The process that ends a rank which is stopped: real processes, stopped and killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hadoop.processes import Process
from tests.lib.commands import REPOSITORY, environment, run

pytestmark = pytest.mark.integration

RANK = """
import sys, time
from train.monitor.watchdog_process import start_guard
guard = start_guard(float(sys.argv[1]))
guard.fed("it fell silent")
print(guard._process.pid, flush=True)
while True:
    time.sleep(0.1)
    guard.fed("it fell silent")
"""
SILENCE_S = 1.5


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[str]]:
    """A process that feeds its guard; its first line is the guard's number."""
    words = [sys.executable, "-c", RANK, str(SILENCE_S)]
    with subprocess.Popen(
        words, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def guard_of(rank: subprocess.Popen[str]) -> Process:
    assert rank.stdout is not None
    guard = Process.find(int(rank.stdout.readline()))
    assert guard is not None
    return guard


def wait_for_end(process: Process, limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while process.lives:
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.02)


def test_a_stopped_rank_is_killed_with_one_line(rank: subprocess.Popen[str]) -> None:
    guard = guard_of(rank)
    rank.send_signal(signal.SIGSTOP)
    _, told = rank.communicate(timeout=300)
    assert (rank.returncode, told) == (-signal.SIGKILL, "it fell silent\n")
    wait_for_end(guard)


def test_a_rank_that_feeds_it_lives(rank: subprocess.Popen[str]) -> None:
    guard = guard_of(rank)
    time.sleep(2 * SILENCE_S)
    assert rank.poll() is None
    assert guard.lives


def test_what_it_is_told_last_counts() -> None:
    told = RANK.replace(
        'guard.fed("it fell silent")\n', 'guard.fed("long line" * 1000, {"path": "x" * 9000}, 0.1)\n', 1
    )
    stops = told + "    import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\n"
    finished = run(sys.executable, "-c", stops, 0.5)
    assert (finished.returncode, finished.stderr) == (-signal.SIGKILL, "it fell silent\n")


def test_it_ends_with_its_rank_without_a_word(rank: subprocess.Popen[str]) -> None:
    guard = guard_of(rank)
    rank.kill()
    _, told = rank.communicate(timeout=300)
    assert told == ""
    wait_for_end(guard)


def test_it_hands_sigterm_on_and_stays(rank: subprocess.Popen[str]) -> None:
    guard = guard_of(rank)
    guard.send(signal.SIGINT)
    time.sleep(0.2)
    assert guard.lives
    guard.send(signal.SIGTERM)
    assert rank.wait(10) == -signal.SIGTERM
    wait_for_end(guard)


def test_it_spares_a_process_that_did_not_start_it(tmp_path: Path) -> None:
    """As where its rank is gone, and another process has the number now."""
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        words = [sys.executable, "-I", "-S", str(REPOSITORY / "train/monitor/watchdog_process.py"), str(other.pid)]
        guard = subprocess.Popen(words, stdin=reading, cwd=tmp_path)
        os.write(writing, b'{"line": "killed", "silence_s": 0.1, "note": null}\n')
        assert guard.wait(10) == 0
        assert other.poll() is None
        other.kill()
    os.close(reading)
    os.close(writing)


def test_a_rank_goes_on_where_its_guard_is_gone_or_stands_still(rank: subprocess.Popen[str]) -> None:
    guard = guard_of(rank)
    guard.send(signal.SIGSTOP)
    time.sleep(0.5)
    guard.send(signal.SIGKILL)
    time.sleep(0.5)
    assert rank.poll() is None


HOLDS_THE_GIL = """
import json, os, re, sys, time
from pathlib import Path
from train.monitor.watchdog_process import start_guard

board = Path(sys.argv[1])
beat = {"number": 5, "idle_s": 1.0}
note = {"file": str(board), "body": {"at": 0, "note": {"beat": beat, "farewell": {"status": 3}}}, "store": None}
guard = start_guard(1.5)
guard.fed("it fell silent", note, None, sys.argv[2] == "computes")
begin = time.monotonic()
if sys.argv[3] == "busy":
    while time.monotonic() - begin < 5:
        sum(range(10**7))
else:
    time.sleep(5)
print(board.read_text(), flush=True)
"""


def test_a_rank_that_computes_without_a_word_is_vouched_for(tmp_path: Path) -> None:
    words = (sys.executable, "-c", HOLDS_THE_GIL, tmp_path / "0-0")
    told = run(*words, "computes", "busy")
    assert (told.returncode, told.stderr) == (0, "")
    note = json.loads(told.stdout)["note"]
    assert (note["farewell"], note["beat"]["idle_s"]) == (None, 0.0)
    assert note["beat"]["number"] > 7
    for ends in (("computes", "asleep"), ("reads", "busy")):
        told = run(*words, *ends)
        assert (told.returncode, told.stderr) == (-signal.SIGKILL, "it fell silent\n")
        assert json.loads((tmp_path / "0-0").read_text())["note"]["farewell"] == {"status": 3}

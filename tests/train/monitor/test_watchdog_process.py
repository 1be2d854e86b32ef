"""The process that ends a rank which is stopped: real processes, stopped and killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hadoop.processes import Process
from tests.lib.commands import PATIENCE_S, REPOSITORY, environment, run, wait_until

pytestmark = pytest.mark.integration

RANK = """
import sys, time
from train.monitor.watchdog_process import start_guard
guard = start_guard(float(sys.argv[1]))
guard.feed("it fell silent")
print(guard._process.pid, flush=True)
while True:
    time.sleep(0.1)
    guard.feed("it fell silent")
"""


@dataclass
class Rank:
    """A process that feeds its guard, and the guard."""

    process: "subprocess.Popen[str]"
    guard: Process

    def end(self) -> str:
        """What it printed to stderr, once it and its guard have ended."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        wait_until(lambda: not self.guard.lives)
        return errors


@pytest.fixture
def rank() -> Iterator[Rank]:
    """One that is never ended for its silence."""
    words = [sys.executable, "-c", RANK, str(10 * PATIENCE_S)]
    with subprocess.Popen(
        words, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        guard = Process.find(int(process.stdout.readline()))
        assert guard is not None
        yield Rank(process, guard)
        process.kill()


def test_a_stopped_rank_is_killed_with_the_last_line() -> None:
    """Also after a line that is too long for the pipe."""
    first = 'guard.feed("long line" * 1000, {"path": "x" * 9000}, 1000)\n'
    stops = "    import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\n"
    finished = run(sys.executable, "-c", RANK.replace('guard.feed("it fell silent")\n', first, 1) + stops, 0.5)
    assert (finished.returncode, finished.stderr) == (-signal.SIGKILL, "it fell silent\n")


def test_it_ends_with_its_rank_without_a_word(rank: Rank) -> None:
    rank.process.kill()
    assert rank.end() == ""


def test_it_hands_sigterm_on_but_not_ctrl_c(rank: Rank) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        rank.guard.send(number)
    assert rank.end() == ""
    assert rank.process.returncode == -signal.SIGTERM


def test_it_spares_a_process_that_did_not_start_it(tmp_path: Path) -> None:
    """As if its rank is gone, and another process has the number now."""
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as other:
        words = [sys.executable, "-I", "-S", str(REPOSITORY / "train/monitor/watchdog_process.py"), str(other.pid)]
        guard = subprocess.Popen(words, stdin=reading, cwd=tmp_path)
        os.write(writing, b'{"line": "killed", "silence_s": 0.1, "note": null}\n')
        assert guard.wait(PATIENCE_S) == 0
        assert other.poll() is None
        other.kill()
    os.close(reading)
    os.close(writing)


FEEDS = """
import os, sys
from train.monitor.watchdog_process import start_guard
guard = start_guard(60)
os.kill(guard._process.pid, int(sys.argv[1]))
for _ in range(2000):  # more than its pipe takes
    guard.feed("line" * 100)
guard._process.kill()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_goes_on_if_its_guard_is_gone_or_stopped(number: signal.Signals) -> None:
    finished = run(sys.executable, "-c", FEEDS, int(number))
    assert (finished.returncode, finished.stderr) == (0, "")


COMPUTES = """
import json, sys, time
from pathlib import Path
from train.monitor.watchdog_process import start_guard

SILENCE_S, NUMBER = 3, 5
board = Path(sys.argv[1])
beat = {"number": NUMBER, "idle_s": 1.0}
note = {"file": str(board), "body": {"at": 0, "note": {"beat": beat, "exit_notice": {"status": 3}}}, "store": None}
guard = start_guard(SILENCE_S)
guard.feed("it fell silent", note, None, sys.argv[2] == "computes")
while not board.exists() or json.loads(board.read_text())["note"]["beat"]["number"] <= NUMBER + SILENCE_S:
    sum(range(10**6)) if sys.argv[3] == "busy" else time.sleep(0.1)
print(board.read_text(), flush=True)
"""


def test_a_rank_that_computes_is_reported_alive_though_it_is_silent(tmp_path: Path) -> None:
    """Each second of its CPU time, and for longer than it may be silent."""
    result = run(sys.executable, "-c", COMPUTES, tmp_path / "0-0", "computes", "busy")
    assert (result.returncode, result.stderr) == (0, "")
    note = json.loads(result.stdout)["note"]
    assert (note["exit_notice"], note["beat"]["idle_s"]) == (None, 0.0)


@pytest.mark.parametrize("words", [("computes", "asleep"), ("reads", "busy")])
def test_a_silent_rank_that_does_not_compute_is_killed(words: tuple[str, str], tmp_path: Path) -> None:
    result = run(sys.executable, "-c", COMPUTES, tmp_path / "0-0", *words)
    assert (result.returncode, result.stderr) == (-signal.SIGKILL, "it fell silent\n")
    assert json.loads((tmp_path / "0-0").read_text())["note"]["exit_notice"] == {"status": 3}

"""Ranks that stop, hang and fail, as real processes: all end, one line names rank and place, no process is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from horovod.runner.http.http_server import RendezvousServer

from tests.hadoop.processes import Process
from tests.lib.commands import HOROVODRUN, PATIENCE_S, REPOSITORY, failed, run, wait_until
from tests.lib.ranks.running import marked, spawn
from tests.lib.ranks.watched_ring import FATAL_STEP, SLICE
from train.monitor.kv_store import KVStoreClient
from train.monitor.watchdog_process import start_guard

pytestmark = pytest.mark.integration

SCRIPT = "tests/lib/ranks/watched_ring.py"
RANKS, FAILING, TIMEOUT_S = 3, 1, 6.0
LAUNCHED = (*HOROVODRUN, "-np", RANKS, SCRIPT)
READING = rf"reading {SLICE} at offset [\d,]+"
RANK = r"\[\d\]<stderr>:ringslice: error: rank 1 on \S+"

FAILURES = {
    "stopped": rf"{RANK} \(process \d+\) was silent for 4 s, stopped or hung in epoch 1, .*{SLICE}.*;"
    r" its guard ends it",
    "sleeps": rf"{RANK} is late: epoch 1, step {FATAL_STEP}, {READING}, without progress for \d+ s; all ranks end"
    r" \(--stall-timeout 6; its log: .*/logs/rank-0001-.*\.log\)",
    "raises": rf"{RANK}, epoch 1, step {FATAL_STEP} \({READING}\): RuntimeError: no such thing"
    r" \(the traceback is in .*/logs/rank-0001-.*\.log\)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For what the ranks write; none of them is left afterwards."""
    yield tmp_path
    wait_until(lambda: not marked(str(tmp_path)))


def messages(text: str) -> list[str]:
    return [line for line in text.splitlines() if "ringslice:" in line]


@pytest.mark.witness
@pytest.mark.parametrize("kind", FAILURES)
def test_a_rank_that_fails_ends_all_with_one_line(kind: str, folder: Path) -> None:
    """The log of the failed rank has where it was, if that rank could still write."""
    result = run(*LAUNCHED, folder, TIMEOUT_S, FAILING, kind, MARK=str(folder))
    assert result.returncode != 0
    [line] = messages(result.stderr)
    assert re.fullmatch(FAILURES[kind], line)
    if kind != "stopped":
        [log] = (folder / "run/logs").glob(f"rank-{FAILING:04d}-*.log")
        assert "in fail" in log.read_text()


ALONE = """
import sys, time
from train.monitor.host_notes import HostNotes
from train.monitor.kv_store import KVStoreClient
from train.monitor.heartbeat import Status
from train.monitor.watch import Watch
from train.monitor.rank_log import RunLog
from train.monitor.stall_detector import Timeouts

timeouts = Timeouts(float(sys.argv[1]), verdict_s=0.5, launcher_s=1, ending_s=0.5)
notes = HostNotes(KVStoreClient("127.0.0.1", 1))  # no server listens there
status = Status()
status.joined(1, 2)
status.phase("stepping", 3, 4)
watching = Watch(status, RunLog(), notes, timeouts=timeouts, remedy="go on")
watching.start()
if sys.argv[2:]:
    watching.announce_exit(1, sys.argv[2])
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["60", "ringslice: error: it failed"], 1, "it failed"),
        (["1.5"], 3, r"rank 1 on \S+ got no further for \d+ s \(epoch 3, step 4, stepping\), .*"),
    ],
    ids=["it has announced its exit", "it cannot ask the others"],
)
def test_a_rank_ends_whatever_its_main_thread_does(words: list[str], status: int, line: str) -> None:
    result = run(sys.executable, "-c", ALONE, *words)
    assert result.returncode == status
    assert re.fullmatch(f"ringslice: error: {line}\n", result.stderr)


COMMAND = """
import os, signal, sys, time
import click
from etl.errors import DataError
from train.monitor.rank_process import run_rank, with_monitor

@click.command()
@click.argument("kind")
@with_monitor
def command(monitor, kind):
    if kind == "early":
        os.kill(os.getpid(), signal.SIGTERM)
    monitor.start(5)
    monitor.phase("stepping", 1, 2)
    if kind == "fails":
        raise DataError("it is damaged")
    print("here", flush=True)
    while True:  # a signal ends no main thread
        time.sleep(1)

run_rank(command, "alone", "run it again")
"""


def test_a_process_that_is_not_a_rank_is_interrupted_in_one_line_and_reports_where_it_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for number in (signal.SIGINT, signal.SIGTERM):
        with spawn(sys.executable, "-c", COMMAND, "waits", log=log) as process:
            wait_until(log.read_text, process)
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 130, log.read_text()
        assert log.read_text() == "here\nringslice: interrupted; run it again\n"
    line = "ringslice: error: epoch 1, step 2 (stepping): it is damaged"
    failed(run(sys.executable, "-c", COMMAND, "fails"), 1, line)


@pytest.mark.parametrize(("rank", "line"), [(0, "ringslice: interrupted; run it again\n"), (1, "")])
def test_an_interrupt_before_the_watch_leaves_an_exit_notice(rank: int, line: str, client: KVStoreClient) -> None:
    store = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": client.host, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(client.port)}
    result = run(sys.executable, "-c", COMMAND, "early", HOROVOD_RANK=str(rank), HOROVOD_SIZE="2", variables=store)
    assert (result.returncode, result.stderr) == (130, line)
    note = client.get("ringslice-0", f"beat-{rank}")
    assert note is not None
    assert note["ranks"][0]["exit_notice"]["status"] == 130


def test_a_paused_machine_is_no_stall_and_ctrl_c_is_reported_once(folder: Path) -> None:
    def step() -> int:
        return max((int(path.name.split("-")[1]) for path in folder.glob("step-*")), default=0)

    words = (*LAUNCHED, folder, TIMEOUT_S, FAILING, "none")
    with spawn(*words, log=folder / "log", MARK=str(folder)) as launcher:
        wait_until(lambda: all((folder / f"{rank}.pid").exists() for rank in range(RANKS)), launcher)
        processes = marked(str(folder))
        for process in processes:
            process.send(signal.SIGSTOP)
        time.sleep(2 * TIMEOUT_S)
        before = step()
        for process in processes:
            process.send(signal.SIGCONT)
        wait_until(lambda: step() > before + 100, launcher)  # of 0.1 s at least
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(PATIENCE_S) != 0
    assert messages((folder / "log").read_text()) == ["[0]<stderr>:ringslice: interrupted; --resume goes on"]


def test_of_an_elastic_ring_the_late_rank_ends_and_the_others_stay(folder: Path, server: RendezvousServer) -> None:
    """Each rank without a launcher that would end the others; its store is there."""
    store = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.port)}
    store["HOROVOD_SIZE"] = str(RANKS)
    words = (sys.executable, SCRIPT, folder, TIMEOUT_S, FAILING, "sleeps", "--elastic")
    logs = [folder / f"{rank}.log" for rank in range(RANKS)]
    with ExitStack() as ends:
        ranks = [
            ends.enter_context(spawn(*words, log=log, MARK=str(folder), HOROVOD_RANK=str(rank), **store))
            for rank, log in enumerate(logs)
        ]
        assert ranks[FAILING].wait(PATIENCE_S) == 3
        [line] = messages(logs[FAILING].read_text())
        late = rf"is late: epoch 1, step \d+, {READING}, .*; it ends, the others go on"
        assert re.fullmatch(rf"ringslice: error: rank 1 on \S+ {late}", line)
        ranks[2].send_signal(signal.SIGTERM)  # its host is taken away
        assert ranks[2].wait(PATIENCE_S) == 130
        assert logs[2].read_text() == ""
        assert ranks[0].poll() is None
        ranks[0].kill()
        wait_until(lambda: not marked(str(folder)))  # its guard ends by itself


FEEDING = """
import sys, time
from train.monitor.watchdog_process import start_guard
SILENCE_S = float(sys.argv[1])
guard = start_guard(SILENCE_S)
guard.feed("it fell silent", None, SILENCE_S, False)
print(guard._process.pid, flush=True)
while True:
    time.sleep(0.1)
    guard.feed("it fell silent", None, SILENCE_S, False)
"""


def test_a_stopped_rank_is_killed_with_the_last_line() -> None:
    """Also after a line and a note that are too long for the pipe."""
    first = 'guard.feed("long line" * 10_000, {"path": "x" * 90_000}, 1000, False)\n'
    stops = "    import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\n"
    usual = 'guard.feed("it fell silent", None, SILENCE_S, False)\n'
    finished = run(sys.executable, "-c", FEEDING.replace(usual, first, 1) + stops, 0.5, timeout_s=PATIENCE_S)
    assert (finished.returncode, finished.stderr) == (-signal.SIGKILL, "it fell silent\n")


def test_it_hands_sigterm_on_but_not_ctrl_c_and_ends_with_its_rank_silently(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with spawn(sys.executable, "-c", FEEDING, 10 * PATIENCE_S, log=log) as rank:
        wait_until(lambda: log.read_text().endswith("\n"), rank)
        guard = Process.find(int(log.read_text()))
        assert guard is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            guard.send(number)
        assert rank.wait(PATIENCE_S) == -signal.SIGTERM
        wait_until(lambda: not guard.lives)
    assert log.read_text() == f"{guard.pid}\n"


def test_it_spares_a_process_that_did_not_start_it(tmp_path: Path) -> None:
    """As if its rank is gone, and another process has the number now."""
    reading, writing = os.pipe()
    with spawn(sys.executable, "-c", "import time; time.sleep(1000)", log=tmp_path / "log") as other:
        words = [sys.executable, "-I", "-S", str(REPOSITORY / "train/monitor/watchdog_process.py"), str(other.pid)]
        guard = subprocess.Popen(words, stdin=reading, cwd=tmp_path)
        os.write(writing, b'{"line": "killed", "silence_s": 0.1, "note": null}\n')
        assert guard.wait(PATIENCE_S) == 0
        assert other.poll() is None
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_goes_on_if_its_guard_is_gone_or_stopped(number: signal.Signals) -> None:
    guard = start_guard(10 * PATIENCE_S)
    os.kill(guard._process.pid, number)
    for _ in range(2000):  # more than its pipe takes
        guard.feed("line" * 100, None, guard.silence_s, False)
    guard._process.kill()
    guard.leave()


COMPUTES = """
import json, sys, time
from pathlib import Path
from train.monitor.watchdog_process import start_guard

SILENCE_S, NUMBER = int(sys.argv[4]), 5
board = Path(sys.argv[1])
beat = {"number": NUMBER, "idle_s": 1.0}
note = {"file": str(board), "body": {"at": 0, "note": {"beat": beat, "exit_notice": {"status": 3}}}, "store": None}
guard = start_guard(SILENCE_S)
guard.feed("it fell silent", note, SILENCE_S, sys.argv[2] == "computes")
while not board.exists() or json.loads(board.read_text())["note"]["beat"]["number"] <= NUMBER + SILENCE_S:
    sum(range(10**6)) if sys.argv[3] == "busy" else time.sleep(0.1)
print(board.read_text(), flush=True)
"""


def test_a_rank_that_computes_is_reported_alive_though_it_is_silent(tmp_path: Path) -> None:
    """Each second of its CPU time, which takes longer on a busy machine, and for longer than it may be silent."""
    result = run(sys.executable, "-c", COMPUTES, tmp_path / "0-0", "computes", "busy", 10)
    assert (result.returncode, result.stderr) == (0, "")
    note = json.loads(result.stdout)["note"]
    assert (note["exit_notice"], note["beat"]["idle_s"]) == (None, 0.0)


@pytest.mark.parametrize("words", [("computes", "asleep"), ("reads", "busy")])
def test_a_silent_rank_that_does_not_compute_is_killed(words: tuple[str, str], tmp_path: Path) -> None:
    result = run(sys.executable, "-c", COMPUTES, tmp_path / "0-0", *words, 3)
    assert (result.returncode, result.stderr) == (-signal.SIGKILL, "it fell silent\n")
    assert json.loads((tmp_path / "0-0").read_text())["note"]["exit_notice"] == {"status": 3}

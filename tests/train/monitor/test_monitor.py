"""Ranks that stop, hang and fail, as real processes: all end, one line says which and where, no process is left."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from horovod.runner.http.http_server import RendezvousServer

from tests.lib import commands
from tests.lib.commands import HOROVODRUN, PATIENCE_S, REPOSITORY, environment, failed, run
from tests.lib.ranks.running import marked, wait_until
from tests.lib.ranks.watched_ring import FATAL_STEP, SLICE

pytestmark = pytest.mark.integration

SCRIPT = "tests/lib/ranks/watched_ring.py"
RANKS, FAILING, TIMEOUT_S = 3, 1, 6.0
READING = rf"reading {SLICE} at offset [\d,]+"
STEP = rf"epoch 1, step \d+, {READING}"
RANK = r"\[\d\]<stderr>:ringslice: error: rank 1 on \S+"

FAILURES = {
    "stopped": rf"{RANK} \(process \d+\) was silent for 4 s, stopped or hung in epoch 1, .*{SLICE}.*;"
    r" its guard ends it",
    "sleeps": rf"{RANK} is late: epoch 1, step {FATAL_STEP}, {READING}, without progress for \d+ s; all ranks end"
    r" \(--stall-timeout 6; its log: .*/logs/rank-0001-.*\.log\)",
    "raises": rf"{RANK}, epoch 1, step {FATAL_STEP} \({READING}\): {SLICE} is damaged at offset 1,234",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For what the ranks write; none of them is left afterwards."""
    yield tmp_path
    commands.wait_until(lambda: not marked(str(tmp_path)), lambda: marked(str(tmp_path)))


def launch_words(folder: Path, kind: str) -> list[str]:
    words = (*HOROVODRUN, "-np", RANKS, SCRIPT, folder, TIMEOUT_S, FAILING, kind)
    return [str(word) for word in words]


def messages(text: str) -> list[str]:
    return [line for line in text.splitlines() if "ringslice:" in line]


@pytest.mark.witness
@pytest.mark.parametrize("kind", FAILURES)
def test_a_rank_that_fails_ends_all_with_one_line(kind: str, folder: Path) -> None:
    """The log of the failed rank has where it was, if that rank could still write."""
    result = run(*launch_words(folder, kind), MARK=str(folder))
    assert result.returncode != 0
    [line] = messages(result.stderr)
    assert re.fullmatch(FAILURES[kind], line)
    if kind != "stopped":
        [log] = (folder / "run/logs").glob(f"rank-{FAILING:04d}-*.log")
        assert "in fail" in log.read_text()


ALONE = """
import sys, time
from train.monitor.host_notes import HostNotes
from train.monitor.kv_store import Letterbox
from train.monitor.heartbeat import Status
from train.monitor.watch import Watch
from train.monitor.rank_log import RunLog
from train.monitor.stall_detector import Timeouts

timeouts = Timeouts(float(sys.argv[1]), verdict_s=0.5, launcher_s=1, ending_s=0.5)
notes = HostNotes(Letterbox("127.0.0.1", 1))  # no server listens there
status = Status()
status.joined(1, 2)
status.phase("stepping", 3, 4)
watching = Watch(status, RunLog(), notes, timeouts=timeouts, remedy="go on")
watching.start()
if sys.argv[2:]:
    watching.announce_exit(1, sys.argv[2])
time.sleep(60)
"""


def end_of(*words: str) -> tuple[int, list[str]]:
    result = run(sys.executable, "-c", ALONE, *words)
    return result.returncode, result.stderr.splitlines()


def test_a_process_that_has_announced_its_exit_ends_whatever_its_main_thread_does() -> None:
    assert end_of("60", "ringslice: error: it failed") == (1, ["ringslice: error: it failed"])


def test_a_rank_without_progress_that_cannot_ask_the_others_ends() -> None:
    status, [line] = end_of("1.5")
    assert status == 3
    assert re.fullmatch(
        r"ringslice: error: rank 1 on \S+ got no further for \d+ s \(epoch 3, step 4, stepping\), .*", line
    )


UNRANKED = """
import sys, time
import click
from etl.errors import DataError
from train.monitor.rank_process import run_rank, with_monitor

@click.command()
@click.argument("fails", type=bool)
@with_monitor
def command(monitor, fails):
    monitor.start(5)
    monitor.phase("stepping", 1, 2)
    if fails:
        raise DataError("it is damaged")
    print("here", flush=True)
    while True:  # a signal ends no main thread
        time.sleep(1)

run_rank(command, "alone", "run it again")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_no_rank_is_interrupted_in_one_line(number: signal.Signals) -> None:
    words = [sys.executable, "-c", UNRANKED, "no"]
    with subprocess.Popen(
        words, cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, result = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, result) == (130, "ringslice: interrupted; run it again\n")


def test_a_process_that_is_no_rank_says_where_it_failed() -> None:
    result = run(sys.executable, "-c", UNRANKED, "yes")
    failed(result, 1, "ringslice: error: epoch 1, step 2 (stepping): it is damaged")


def test_ctrl_c_is_reported_once(folder: Path) -> None:
    with subprocess.Popen(
        launch_words(folder, "none"),
        cwd=REPOSITORY,
        env=environment(MARK=str(folder)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        wait_until(lambda: all((folder / f"{rank}.pid").exists() for rank in range(RANKS)), launcher)
        launcher.send_signal(signal.SIGINT)
        _, result = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode != 0
    assert messages(result) == ["[0]<stderr>:ringslice: interrupted; --resume goes on"]


def test_of_an_elastic_ring_the_late_rank_ends_and_the_others_stay(folder: Path, server: RendezvousServer) -> None:
    """Each rank without a launcher that would end the others; its store is there."""
    store = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.port)}
    words = [sys.executable, SCRIPT, str(folder), str(TIMEOUT_S), str(FAILING), "sleeps", "--elastic"]
    ranks = [
        subprocess.Popen(
            words,
            cwd=REPOSITORY,
            env=environment(MARK=str(folder), HOROVOD_RANK=str(rank), HOROVOD_SIZE=str(RANKS), **store),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    _, result = ranks[FAILING].communicate(timeout=PATIENCE_S)
    [line] = messages(result)
    assert re.fullmatch(rf"ringslice: error: rank 1 on \S+ is late: {STEP}, .*; it ends, the others go on", line)
    assert ranks[FAILING].returncode == 3
    ranks[2].send_signal(signal.SIGTERM)  # its host is taken away
    assert ranks[2].communicate(timeout=PATIENCE_S)[1] == ""
    assert ranks[2].returncode == 130
    assert ranks[0].poll() is None
    ranks[0].kill()
    ranks[0].communicate()

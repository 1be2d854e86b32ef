"""Ranks that die, stop, hang and fail, as real processes: all end, one line says which and where, nothing is left."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from horovod.runner.http.http_server import RendezvousServer

from tests.hadoop.processes import find_all
from tests.lib.commands import HOROVODRUN, REPOSITORY, environment, failed, run
from tests.lib.ranks.watched_ring import FATAL_STEP, SLICE

pytestmark = pytest.mark.integration

SCRIPT = "tests/lib/ranks/watched_ring.py"
RANKS, UNLUCKY, TIMEOUT_S = 3, 1, 6.0
READING = rf"reading {SLICE} at offset [\d,]+"
STEP = rf"epoch 1, step \d+, {READING}"
RANK = r"\[\d\]<stderr>:ringslice: error: rank 1 on \S+"
ENDS_WITHIN_S = 60.0

GRIEFS = {
    "killed": rf"{RANK} was killed or died without a word in epoch 1, step \d+, .*{SLICE}.*; --resume goes on",
    "stopped": rf"{RANK} \(process \d+\) was silent for 4 s, stopped or hung in epoch 1, .*{SLICE}.*;"
    r" its guard ends it",
    "sleeps": rf"{RANK} is late: epoch 1, step {FATAL_STEP}, {READING}, without progress for \d+ s; all ranks end"
    r" \(--stall-timeout 6; its log: .*/logs/rank-0001-.*\.log\)",
    "raises": rf"{RANK}, epoch 1, step {FATAL_STEP} \({READING}\): {SLICE} is damaged at offset 1,234",
    "defect": rf"{RANK}, epoch 1, step {FATAL_STEP} \({READING}\): AssertionError: no such thing"
    r" \(the traceback is in .*\)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For what the ranks write; nothing that was told of it is left afterwards."""
    yield tmp_path
    deadline = time.monotonic() + 10
    while left := find_all(lambda words, its: f"MARK={tmp_path}".encode() in its):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def marked(folder: Path) -> dict[str, str]:
    return environment(MARK=str(folder))


def launch_words(folder: Path, kind: str) -> list[str]:
    words = (*HOROVODRUN, "-np", RANKS, SCRIPT, folder, TIMEOUT_S, UNLUCKY, kind)
    return [str(word) for word in words]


def launch(folder: Path, kind: str, *more: str) -> str:
    """Have ranks come to grief; what is on standard error then."""
    words = [*launch_words(folder, kind), *more]
    told = subprocess.run(
        words, cwd=REPOSITORY, env=marked(folder), timeout=ENDS_WITHIN_S, capture_output=True, text=True
    )
    assert told.returncode != 0
    return told.stderr


def told_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if "ringslice:" in line]


def log_of(folder: Path, rank: int) -> str:
    [path] = (folder / "run/logs").glob(f"rank-{rank:04d}-*.log")
    return path.read_text()


def require_grief(folder: Path, kind: str, told: str) -> None:
    """One line tells of it; the unlucky rank's log has where it was, if that rank could still write."""
    lines = told_lines(told)
    assert len(lines) == 1, told
    assert re.fullmatch(GRIEFS[kind], lines[0]), lines[0]
    if kind in ("sleeps", "raises", "defect"):
        assert "in come_to_grief" in log_of(folder, UNLUCKY)


def by_kind(*quick: str) -> pytest.MarkDecorator:
    """Each grief; those that are not ``quick`` in the long tests only."""
    marks = {kind: [] if kind in quick else [pytest.mark.chaos] for kind in GRIEFS}
    return pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks[kind]) for kind in GRIEFS])


@pytest.mark.witness
@by_kind("stopped", "sleeps", "raises")
def test_a_rank_that_comes_to_grief_ends_all_in_one_line(kind: str, folder: Path) -> None:
    require_grief(folder, kind, launch(folder, kind))


@pytest.mark.chaos
@by_kind("killed")
def test_in_a_ring_of_horovods_too(kind: str, folder: Path) -> None:
    """Where Horovod tells the others of a broken ring at the moment that the launcher ends them."""
    require_grief(folder, kind, launch(folder, kind, "--ring"))


ALONE = """
import sys, time
from train.monitor.host_notes import HostNotes
from train.monitor.kv_store import Letterbox
from train.monitor.heartbeat import Pulse
from train.monitor.monitor import Watch
from train.monitor.rank_log import RunLog
from train.monitor.stall_detector import Timeouts

timeouts = Timeouts(float(sys.argv[1]), verdict_s=0.5, launcher_s=1, ending_s=0.5)
notes = HostNotes(Letterbox("127.0.0.1", 1))  # no server listens there
pulse = Pulse()
pulse.joins(1, 2)
pulse.enters("stepping", 3, 4)
watching = Watch(pulse, RunLog(), notes, timeouts=timeouts, remedy="go on")
watching.start()
if sys.argv[2:]:
    watching.farewell(1, sys.argv[2])
time.sleep(60)
"""


def end_of(*words: str) -> tuple[int, list[str]]:
    told = subprocess.run(
        [sys.executable, "-c", ALONE, *words],
        cwd=REPOSITORY,
        env=environment(),
        timeout=300,
        capture_output=True,
        text=True,
    )
    return told.returncode, told.stderr.splitlines()


def test_a_process_that_has_said_farewell_ends_whatever_its_main_thread_is_in() -> None:
    assert end_of("60", "ringslice: error: it failed") == (1, ["ringslice: error: it failed"])


def test_a_rank_that_gets_no_further_and_cannot_ask_the_others_ends() -> None:
    status, [line] = end_of("1.5")
    assert status == 3
    assert re.fullmatch(
        r"ringslice: error: rank 1 on \S+ got no further for \d+ s \(epoch 3, step 4, stepping\), .*", line
    )


UNRANKED = """
import sys, time
import click
from etl.errors import DataError
from train.monitor.heartbeat import PULSE
from train.monitor.rank_process import begin_watch, run_rank

@click.command()
@click.argument("fails", type=bool)
def command(fails):
    begin_watch(5)
    PULSE.enters("stepping", 1, 2)
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
        _, told = process.communicate(timeout=ENDS_WITHIN_S)
    assert (process.returncode, told) == (130, "ringslice: interrupted; run it again\n")


def test_a_process_that_is_no_rank_says_where_it_failed() -> None:
    told = run(sys.executable, "-c", UNRANKED, "yes")
    failed(told, 1, "ringslice: error: epoch 1, step 2 (stepping): it is damaged")


def wait_for(paths: list[Path], processes: list[subprocess.Popen[str]]) -> None:
    while not all(path.exists() for path in paths):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)


def test_ctrl_c_is_told_once(folder: Path) -> None:
    with subprocess.Popen(
        launch_words(folder, "none"),
        cwd=REPOSITORY,
        env=marked(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        wait_for([folder / f"{rank}.pid" for rank in range(RANKS)], [launcher])
        launcher.send_signal(signal.SIGINT)
        _, told = launcher.communicate(timeout=ENDS_WITHIN_S)
    assert launcher.returncode != 0
    assert told_lines(told) == ["[0]<stderr>:ringslice: interrupted; --resume goes on"]


def test_of_an_elastic_ring_the_late_rank_ends_and_the_others_stay(folder: Path) -> None:
    """Each rank without a launcher that would end the others; its store is there."""
    server = RendezvousServer()
    store = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.start())}
    server.init([])
    words = [sys.executable, SCRIPT, str(folder), str(TIMEOUT_S), str(UNLUCKY), "sleeps", "--elastic"]
    ranks = [
        subprocess.Popen(
            words,
            cwd=REPOSITORY,
            env=marked(folder) | store | {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(RANKS)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    _, told = ranks[UNLUCKY].communicate(timeout=ENDS_WITHIN_S)
    [line] = told_lines(told)
    assert re.fullmatch(rf"ringslice: error: rank 1 on \S+ is late: {STEP}, .*; it ends, the others go on", line)
    assert ranks[UNLUCKY].returncode == 3
    others = [rank for rank in ranks if rank is not ranks[UNLUCKY]]
    time.sleep(1)
    assert [rank.poll() for rank in others] == [None, None]
    os.kill(others[1].pid, signal.SIGTERM)  # its host is taken away
    assert others[1].communicate(timeout=ENDS_WITHIN_S)[1] == ""
    assert others[1].returncode == 130
    others[0].kill()
    others[0].communicate()
    server.stop()
    server._httpd.server_close()

"""The watch of a rank: who is gone, which rank reports it, how long a guard waits; and the log of a rank."""

import faulthandler
import os
import re
import shutil
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from etl.storage.filesystem import LocalFilesystem
from etl.storage.place import Place, open_place
from tests.lib.commands import wait_until
from tests.lib.faults import Fault, FaultyFilesystem
from tests.lib.ranks.simulated_ring import beat
from tests.train.monitor.conftest import Clock
from train.monitor import exit_reporter
from train.monitor.heartbeat import FOR_ALL, JOINED, LEASING, LOADING, READING, SAVING, Status
from train.monitor.host_notes import HostNotes
from train.monitor.kv_store import KVStoreClient
from train.monitor.notes import ExitNotice, Note
from train.monitor.rank_log import RunLog
from train.monitor.stall_detector import Timeouts
from train.monitor.watch import LOADING_FACTOR, Watch
from train.monitor.watchdog_process import Guard


def watch_of(client: KVStoreClient, elastic: bool = False) -> Watch:
    """That of rank 0 of four."""
    status = Status()
    status.joined(0, 4)
    return Watch(status, RunLog(), HostNotes(client), timeouts=Timeouts(45), remedy="go on", elastic=elastic)


def test_a_rank_that_failed_has_reported_it(client: KVStoreClient) -> None:
    Note(beat(3), "", ExitNotice(1, "ringslice: error: it failed")).put_into(client)
    assert watch_of(client).peer_lost().is_reported


@pytest.mark.parametrize("left", [[], [2]])
def test_an_elastic_ring_sees_who_has_left_and_goes_on(
    left: list[int], client: KVStoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits, the others send beats."""
    numbers = count()

    def send_beats(_: float) -> None:
        for rank in {1, 2, 3} - {*left}:
            Note(beat(rank, number=next(numbers))).put_into(client)

    monkeypatch.setattr(exit_reporter, "time", SimpleNamespace(monotonic=time.monotonic, sleep=send_beats))
    for rank in left:
        Note(beat(rank), "", ExitNotice(130)).put_into(client)
    watch = watch_of(client, elastic=True)
    found, _ = watch._lost(watch._status.beat())
    assert [(each.rank, each.status) for each in found] == [(rank, 130) for rank in left]
    assert client.get("ringslice-0", "beat-0") is None


def test_the_guard_waits_longer_until_the_first_phase() -> None:
    """While large libraries are loaded."""
    for phase, limit_s in (("", LOADING_FACTOR * 4.0), ("building the model", 4.0)):
        status, guard = Status(), mock.Mock(Guard, silence_s=4.0)
        if phase:
            status.phase(phase)
        watch = Watch(status, RunLog(), guard=guard, timeouts=Timeouts(6), remedy="go on")
        watch._look_round(status.beat(), None)
        [fed] = guard.feed.call_args_list
        assert fed.args[2] == limit_s


@pytest.mark.parametrize(
    ("phase", "idle_s", "is_ended"),
    [
        *[(each, 50, True) for each in (JOINED, LOADING, SAVING, f"{READING} test", LEASING, FOR_ALL)],
        ("gathering from all ranks", 500, False),
        (READING, 40, False),
    ],
)
def test_a_rank_that_no_other_one_watches_ends_itself_if_the_storage_does_not_answer(
    phase: str, idle_s: float, is_ended: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not if it computes, or waits for other ranks."""
    ends: list[tuple[int, str]] = []
    monkeypatch.setattr(Watch, "_end", lambda _, status, line: ends.append((status, line)))
    status = Status(clock)
    status.phase(phase, 3, 4)
    watch = Watch(status, RunLog(), timeouts=Timeouts(45), remedy="go on")
    clock.now += idle_s
    watch._look_round(status.beat(), None)
    assert [each for each, _ in ends] == ([3] if is_ended else [])
    for _, line in ends:
        assert re.fullmatch(
            rf"ringslice: error: rank 0 on \S+ is late: epoch 3, step 4, {phase}, without progress for 50 s; it ends,"
            r" as the storage does not answer \(--stall-timeout 45\)",
            line,
        )


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def remote(folder: Path, fault: Fault) -> Place:
    """A run on a root that is not local."""
    return Place(FaultyFilesystem(LocalFilesystem(), fault), str(folder / "run"))


def only(folder: Path) -> str:
    [path] = folder.iterdir()
    return path.read_text()


def test_a_local_log_has_each_line_at_once_and_those_before_too(tmp_path: Path, elsewhere: Path) -> None:
    log = RunLog()
    log.info("before")
    assert log.uri == ""
    log.open(open_place(str(tmp_path / "run")), 2)
    name = rf"{tmp_path}/run/logs/rank-0002-.+-{os.getpid()}\.log"
    assert re.fullmatch(name, log.uri)
    log.info("after")
    try:
        raise ValueError("no good")
    except ValueError as error:
        log.failure("it failed", error)
    faulthandler.dump_traceback(log.stream)
    lines = only(tmp_path / "run/logs").splitlines()
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO before", lines[0])
    assert [line.partition(" ")[2] for line in lines[1:3]] == ["INFO after", "ERROR it failed"]
    assert "ValueError: no good" in lines
    assert any("test_watch.py" in line for line in lines[lines.index("ValueError: no good") :])
    assert log.end() == ""
    assert not list(elsewhere.iterdir())


def test_a_log_for_elsewhere_is_copied_whole_as_often_as_asked(tmp_path: Path, elsewhere: Path) -> None:
    log = RunLog()
    log.info("first")
    log.open(remote(tmp_path, Fault()), 0)
    assert log.upload() == ""
    log.info("second")
    assert len(only(tmp_path / "run/logs").splitlines()) == 1
    assert log.end() == ""
    assert [line.rpartition(" ")[2] for line in only(tmp_path / "run/logs").splitlines()] == ["first", "second"]
    assert not list(elsewhere.iterdir())


def test_a_log_does_not_make_the_folder_of_a_removed_run_again(tmp_path: Path, elsewhere: Path) -> None:
    log = RunLog()
    log.open(remote(tmp_path, Fault()), 0)
    assert log.upload() == ""
    log.info("all that is known")
    shutil.rmtree(tmp_path / "run")
    assert Path(log.end(0.3)).parent == elsewhere
    assert "run/logs was removed" in only(elsewhere)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", range(1, 6))
def test_where_storage_fails_the_local_file_is_named_and_kept(number: int, tmp_path: Path, elsewhere: Path) -> None:
    fault = Fault(number, dies=True)
    log = RunLog()
    log.open(remote(tmp_path, fault), 0)
    log.info("all that is known")
    kept = log.end(0.3)
    wait_until(lambda: fault.hit)
    assert Path(kept).parent == elsewhere
    assert "all that is known" in Path(kept).read_text()

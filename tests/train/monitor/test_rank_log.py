"""The log of a rank: on a local root where it belongs, else a file of this machine that is copied there."""

import faulthandler
import os
import re
import threading
from pathlib import Path

import pytest

from etl.storage.local import LocalFilesystem
from etl.storage.place import Place, open_place
from tests.lib.faults import Fault, FaultyFilesystem
from train.monitor.rank_log import RunLog


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
    assert any("test_rank_log.py" in line for line in lines[lines.index("ValueError: no good") :])
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


@pytest.mark.parametrize("number", range(1, 6))
def test_where_storage_fails_the_local_file_is_named_and_kept(number: int, tmp_path: Path, elsewhere: Path) -> None:
    fault = Fault(number, dies=True)
    log = RunLog()
    log.open(remote(tmp_path, fault), 0)
    log.info("all that is known")
    kept = log.end(0.3)
    assert fault.hit
    assert Path(kept).parent == elsewhere
    assert "all that is known" in Path(kept).read_text()


def test_storage_that_hangs_is_not_waited_for(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, ends = Fault(), threading.Event()
    log = RunLog()
    log.open(remote(tmp_path, fault), 0)
    monkeypatch.setattr(fault, "call", lambda kind, function: ends.wait())
    assert Path(log.end(0.2)).parent == elsewhere
    ends.set()

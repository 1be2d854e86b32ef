"""Checkpoints in the background: none is lost, no error is swallowed, no wait is endless."""

import errno
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from etl.storage.atomic import ReplacedError
from etl.storage.place import Place
from tests.lib.commands import PATIENCE_S, wait_until
from tests.lib.faults import fill_disk
from train.checkpoints import background
from train.checkpoints.background import Saver
from train.checkpoints.store import open_checkpoint, steps, write
from train.monitor.monitor import Monitor
from train.parallel.collective import SingleProcess
from train.runs.checkpointer import Checkpointer

GROUPS = {"model": {"a": np.arange(5)}}


class Gate:
    """A callback of progress that waits until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def test_it_is_written_while_the_caller_goes_on(place: Place, staging: Place, gate: Gate) -> None:
    """One at a time; the last one is there once it is finished."""
    saver = Saver(place, staging, keep=9, progress=gate)
    assert not saver.is_busy
    saver.submit(10, GROUPS, {"score": 0.5})
    assert gate.reached.wait(PATIENCE_S)
    assert saver.is_busy
    saver.check()
    ends = threading.Event()

    def submit_the_next() -> None:
        saver.submit(20, GROUPS, {})
        saver.finish()
        ends.set()

    threading.Thread(target=submit_the_next, daemon=True).start()
    assert not ends.wait(0.2)
    assert steps(place) == []
    gate.opened.set()
    assert ends.wait(PATIENCE_S)
    assert not saver.is_busy
    assert steps(place) == [10, 20]
    assert open_checkpoint(place, 10).marker["score"] == 0.5
    assert open_checkpoint(place, 10).read("model")["a"].tolist() == [0, 1, 2, 3, 4]


def test_a_score_is_added_once_its_checkpoint_is_written(place: Place, staging: Place, gate: Gate) -> None:
    saver = Saver(place, staging, keep=1, progress=gate)
    saver.submit(10, GROUPS, {"score": None})
    threading.Thread(target=saver.amend, args=[{"score": 0.5}], daemon=True).start()
    assert gate.reached.wait(PATIENCE_S)
    assert steps(place) == []
    gate.opened.set()
    wait_until(lambda: steps(place) == [10] and open_checkpoint(place, 10).marker["score"] is not None)
    saver.submit(20, GROUPS, {"score": None})
    saver.finish()
    assert steps(place) == [10, 20]  # the best, and the newest
    saver.amend({"score": 0.75})
    saver.finish()
    assert steps(place) == [20]


@pytest.mark.usefixtures("capsys")  # which writes no file
def test_too_many_failures_in_a_row_are_raised(place: Place, staging: Place) -> None:
    """One that fails again with its score is one failure."""
    saver = Saver(place, staging, keep=9, failures=2)
    saver.submit(10, GROUPS, {})
    saver.wait()
    with fill_disk():
        saver.submit(20, GROUPS, {})
        saver.amend({"score": 0.5})
        saver.submit(30, GROUPS, {})
        with pytest.raises(OSError, match="File too large"):
            saver.wait()
    assert steps(place) == [10]


@pytest.mark.usefixtures("capsys")
def test_the_last_one_must_be_written(place: Place, staging: Place) -> None:
    saver = Saver(place, staging, keep=9, failures=99)
    with fill_disk():
        saver.submit(10, GROUPS, {"score": None})
        saver.amend({"score": 0.5})
        with pytest.raises(OSError, match="File too large"):
            saver.finish()
    saver.finish()
    assert open_checkpoint(place, 10).marker["score"] == 0.5


def test_a_failed_removal_is_reported_and_fails_nothing(
    place: Place, staging: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    saver = Saver(place, staging, keep=1, failures=1)
    error = PermissionError(errno.EPERM, "Operation not permitted", "step-00000010")
    with mock.patch.object(background, "prune", side_effect=error):
        for step in (10, 20):
            saver.submit(step, GROUPS, {})
        saver.finish()
    assert steps(place) == [10, 20]
    line = "an older checkpoint was not removed (Operation not permitted: step-00000010"
    assert capsys.readouterr().err.count(line) == 2
    saver.submit(30, GROUPS, {})
    saver.finish()
    assert steps(place) == [30]


@pytest.mark.parametrize("error", [ReplacedError("by another run"), SystemExit("by another run")])
def test_what_goes_wrong_is_raised_in_the_caller_once(error: BaseException, place: Place, staging: Place) -> None:
    saver = Saver(place, staging, keep=2, progress=mock.Mock(side_effect=[error, *[None] * 99]))
    saver.submit(10, GROUPS, {})
    with pytest.raises(type(error), match="by another run"):
        saver.submit(20, GROUPS, {})
    saver.submit(30, GROUPS, {})
    saver.finish()
    assert steps(place) == [30]


def test_an_abandoned_one_leaves_nothing_half_written_and_is_left_behind_if_it_hangs(
    place: Place, staging: Place, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "ABANDON_S", 0.01)
    saver = Saver(place, staging, keep=2, progress=gate)
    saver.submit(10, GROUPS, {})
    assert gate.reached.wait(PATIENCE_S)
    saver.abandon()
    assert saver.is_busy
    assert [each.daemon for each in threading.enumerate() if each.name == "checkpoint 10"] == [True]  # nor by the end
    gate.opened.set()
    saver.finish()
    assert steps(place) == []
    assert staging.children() == []
    Saver(place, staging, keep=2).abandon()  # that never began


def test_a_new_ring_does_not_write_the_newest_checkpoint_again(place: Place, staging: Place) -> None:
    """An elastic run has its position in memory, and a new saver for each ring."""
    write(place, staging, 10, GROUPS, {"score": None})
    settings = SimpleNamespace(keep=1, checkpoint_failures=1)
    run: Any = SimpleNamespace(folder=place, staging=staging, settings=settings, identity={})
    trainer, position = mock.Mock(is_divided=False), mock.Mock(step=10, to_json=dict)
    checkpoints = Checkpointer(run, trainer, SingleProcess(), Monitor(), metrics=mock.Mock())
    checkpoints.adopt(position)
    checkpoints.add_score(position, 0.5)
    checkpoints.finish()
    assert open_checkpoint(place, 10).marker["score"] == 0.5
    trainer.state.assert_not_called()

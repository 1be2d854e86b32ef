"""A run that sleeps while another takes its stage over deletes nothing of that run's, at whatever call it slept."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from etl.errors import EnvironmentFailure
from etl.stages import lease
from etl.stages.lease import BusyError, Lease, Owner
from etl.stages.run import Run, RunRecord
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place, open_place
from tests.etl.stages.test_stage import NEW, OLD, begun, pose_as_ended_process, require_finished, stage_in, work_on
from tests.lib.faults import Fault, FaultError, faulty

STEP = 10
OTHER = {**OLD, "config": {"size": 3}}


class Sleep(Fault):
    """Before the ``number``-th call of storage somebody else is at work."""

    meanwhile: Callable[[], object]

    def call(self, kind: str, function: Callable[[], object]) -> object:
        self.calls.append(kind)
        if len(self.calls) == self.number:
            self.meanwhile()
        return function()


def replace_sleeping(place: Place, number: int, meanwhile: Callable[[], object]) -> Sleep:
    """Replace a stage, as a run that sleeps at a call and is taken for dead; it may find that it was replaced."""
    work_on(stage_in(place), OLD)
    sleep, awake = Sleep(number), Owner.this_process

    def take_over() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lease.Owner, "this_process", awake)
            meanwhile()

    sleep.meanwhile = take_over
    with pose_as_ended_process(), suppress(EnvironmentFailure):
        work_on(stage_in(faulty(place, sleep)), NEW, overwrite=True)
    assert sleep.hit or not number
    return sleep


def sleep_while_another_works(place: Place, number: int, finishes: bool) -> None:
    """The other run ends before this one goes on, or after it."""
    stage, runs = stage_in(place), list[Run]()

    def work() -> None:
        runs.append(begun(stage.begin(OTHER, overwrite=True)))
        publish_bytes(stage.folder / "part", runs[0].open_tasks(), repr(OTHER).encode())
        if finishes:
            finish()

    def finish() -> None:
        runs[0].commit({"format": stage.format, **OTHER}, RunRecord())

    replace_sleeping(place, number, work)
    if finishes:
        stage.work.filesystem.delete_empty(stage.work.path)  # the empty folder may have been made again
    else:
        finish()
    marker = stage.read_marker()
    require_finished(stage, {key: marker[key] for key in OLD})
    assert marker["config"] == OTHER["config"] or (finishes and marker["config"] == NEW["config"])


@pytest.mark.parametrize(
    "first", [4, *(pytest.param(first, marks=pytest.mark.integration) for first in range(1, STEP + 1) if first != 4)]
)
def test_who_sleeps_while_another_works(first: int, tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    for number in range(first, len(replace_sleeping(place / "counted", 0, lambda: None).calls) + 1, STEP):
        for finishes in (True, False):
            sleep_while_another_works(place / f"{number}-{finishes}", number, finishes)


def begin_two(work: Place, number: int, *, with_lease: bool) -> int:
    """Take the lease while another does, at this call of storage; returns how many calls that takes. A killed run has
    left its staging, and its lease or not.
    """
    if with_lease:
        with pose_as_ended_process():
            Lease.take(work, "a test").stop_renewing()
    else:
        (work / "driver-000005-ab").make_folder()
    taken, sleep = list[Lease](), Sleep(number)

    def take(place: Place) -> None:
        with suppress(BusyError):
            taken.append(Lease.take(place, "a test"))

    sleep.meanwhile = lambda: take(work)
    take(faulty(work, sleep))
    calls = len(sleep.calls)
    assert len(taken) == 1, number
    taken[0].check()
    taken[0].delete_work()
    assert not work.exists(), number
    return calls


def test_of_two_that_begin_at_once_one_has_the_lease(tmp_path: Path) -> None:
    for with_lease in (False, True):
        place = open_place(str(tmp_path / str(with_lease)))
        for number in range(1, begin_two(place / "counted", 0, with_lease=with_lease) + 1):
            begin_two(place / str(number), number, with_lease=with_lease)


@pytest.mark.parametrize("after", [False, True])
def test_a_storage_that_fails_while_a_run_begins_leaves_no_lease(after: bool, tmp_path: Path) -> None:
    """Of a process that lives on."""
    for number in count(1):
        work, fault = open_place(str(tmp_path)) / str(number), Fault(number, after)
        with suppress(FaultError):
            Lease.take(faulty(work, fault), "a test")
        if not fault.hit:
            break
        Lease.take(work, "a test").delete_work()
        assert not work.exists(), number
    assert number > 10

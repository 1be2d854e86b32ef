"""A run that sleeps while another takes its stage over deletes nothing of that run's, at whatever call it slept."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from etl.errors import EnvironmentFailure
from etl.stages import lease
from etl.stages.lease import Owner
from etl.stages.run import Run, RunRecord
from etl.stages.stage import Stage
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place, open_place
from tests.etl.stages.test_stage import NEW, OLD, as_a_process_that_is_gone, begun, require_finished, stage_in, work_on
from tests.lib.faults import Fault, faulty

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
    with as_a_process_that_is_gone(), suppress(EnvironmentFailure):
        work_on(stage_in(faulty(place, sleep)), NEW, overwrite=True)
    assert sleep.hit or not number
    return sleep


def count_calls(place: Place) -> int:
    return len(replace_sleeping(place / "counted", 0, lambda: None).calls)


def sleep_while_another_finishes(place: Place, numbers: Iterable[int]) -> None:
    for number in numbers:
        own = place / f"finishes-{number}"
        replace_sleeping(own, number, partial(work_on, stage_in(own), OTHER, overwrite=True))
        stage = stage_in(own)
        stage.work.filesystem.delete_empty(stage.work.path)  # the empty folder may have been made again
        marker = stage.read_marker()
        require_finished(stage, {key: marker[key] for key in OLD})
        assert marker["config"] in (NEW["config"], OTHER["config"])


def sleep_while_another_works(place: Place, numbers: Iterable[int]) -> None:
    def begin(stage: Stage) -> None:
        run = begun(stage.begin(OTHER, overwrite=True))
        runs.append(run)
        publish_bytes(stage.folder / "part", run.open_tasks(), repr(OTHER).encode())

    for number in numbers:
        own, runs = place / f"works-{number}", list[Run]()
        stage = stage_in(own)
        replace_sleeping(own, number, partial(begin, stage))
        runs[0].commit({"format": stage.format, **OTHER}, RunRecord())
        require_finished(stage, OTHER)


each_of = pytest.mark.parametrize(
    "first", [4, *(pytest.param(first, marks=pytest.mark.chaos) for first in range(1, STEP + 1) if first != 4)]
)


@each_of
def test_who_sleeps_while_another_finishes_or_works(first: int, tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    numbers = range(first, count_calls(place) + 1, STEP)
    sleep_while_another_finishes(place, numbers)
    sleep_while_another_works(place, numbers)

"""What a stage finds when it begins, and that a failure of any call of storage leaves nothing wrong."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etl import claims
from etl.claims import Owner
from etl.errors import EnvironmentFailure, UsageError
from etl.publishing import publish_bytes
from etl.stages import Run, Stage, State
from etl.storage import Place, open_place
from tests.faults import Fault, FaultError, faulty

OLD: dict[str, Any]
NEW: dict[str, Any]
OLD, NEW = {"config": {"size": 1}, "input": "x"}, {"config": {"size": 2}, "input": "x"}


@contextmanager
def as_a_process_that_is_gone() -> Iterator[None]:
    """Within the block, claims are those of a process that is dead when the next one looks."""
    gone = dataclasses.replace(Owner.this_process(), started="never")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims.Owner, "this_process", classmethod(lambda cls: gone))
        yield


def stage_in(place: Place) -> Stage:
    return Stage("normalize", place / "stage", "dataset.json", "test/1")


def work_on(stage: Stage, identity: dict[str, Any], overwrite: bool = False) -> State:
    """A stage with one file, published by a task, whose content is its configuration."""
    try:
        state = stage.begin(identity, overwrite)
        file = stage.folder / "part"
        if state is not State.DONE:
            if not file.exists():
                publish_bytes(file, stage.open_tasks(), repr(identity).encode())
            stage.commit({"format": stage.format, **identity}, Run())
        return state
    finally:
        stage.release()


def require_finished(stage: Stage, identity: dict[str, Any]) -> None:
    assert sorted(info.base_name for info in stage.folder.children(recursive=True)) == [
        "dataset.json",
        "part",
        "run.json",
    ]
    assert (stage.folder / "part").read_bytes() == repr(identity).encode()
    assert stage.read_marker()["config"] == identity["config"]


@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_any_call_of_replacing_a_stage_may_fail(after: bool, dies: bool, tmp_path: Path) -> None:
    numbers = iter(range(1, 1000))
    for number in numbers:
        place = open_place(str(tmp_path / str(number)))
        stage = stage_in(place)
        work_on(stage, OLD)
        fault = Fault(number, after, dies)
        with as_a_process_that_is_gone():
            try:
                work_on(stage_in(faulty(place, fault)), NEW, overwrite=True)
            except (FaultError, EnvironmentFailure):
                assert fault.hit
        if not fault.hit:
            break
        if stage.marker.exists():  # what readers see is whole: the old or the new
            marker = stage.read_marker()
            assert (stage.folder / "part").read_bytes() == repr({key: marker[key] for key in OLD}).encode()
        if not (stage.marker.exists() and stage.read_marker()["config"] == OLD["config"]):
            work_on(stage, NEW)  # without --overwrite: it goes on
            work_on(stage, NEW)
            require_finished(stage, NEW)
    assert {"create", "write", "close", "rename", "delete", "list"} <= set(fault.calls)
    assert number > 30, f"only {number} calls were counted: {fault.calls}"


def test_an_unfinished_stage_of_another_configuration_is_begun_afresh(tmp_path: Path) -> None:
    stage = stage_in(open_place(str(tmp_path)))
    assert stage.begin(OLD) is State.FRESH
    publish_bytes(stage.folder / "part", stage.attempts, b"old")
    stage.release()
    assert stage.begin(OLD) is State.RESUMED
    assert (stage.folder / "part").exists()
    stage.release()
    assert stage.begin(NEW) is State.FRESH
    assert not (stage.folder / "part").exists()
    stage.release()


def test_files_that_no_stage_wrote_are_not_touched(tmp_path: Path) -> None:
    stage = stage_in(open_place(str(tmp_path)))
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "thesis.tex").write_text("all I have")
    with pytest.raises(UsageError, match=r"holds files but neither dataset\.json nor a plan"):
        stage.begin(OLD)
    assert [path.name for path in (tmp_path / "stage").iterdir()] == ["thesis.tex"]


def test_another_format_is_refused(tmp_path: Path) -> None:
    stage = stage_in(open_place(str(tmp_path)))
    work_on(stage, OLD)
    with pytest.raises(UsageError, match="has format 'test/1', this version reads 'test/2'"):
        Stage("normalize", stage.folder, "dataset.json", "test/2").read_marker()

"""What a stage finds when it begins, and that a crash at any step of beginning or ending leaves nothing wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etl import stages
from etl.errors import UsageError
from etl.stages import Run, Stage, State
from etl.storage import Place, open_place, publish_bytes

OLD: dict[str, Any]
NEW: dict[str, Any]
OLD, NEW = {"config": {"size": 1}, "input": "x"}, {"config": {"size": 2}, "input": "x"}


class Crash(BaseException):
    """The process is gone."""


@contextmanager
def crash_at(call: int, after: bool) -> Iterator[list[int]]:
    """Let the ``call``-th change of storage crash, before or after it took effect; the list counts the changes."""
    counted = [0]

    def crashing(change):  # type: ignore[no-untyped-def]
        def wrapper(*arguments):  # type: ignore[no-untyped-def]
            counted[0] += 1
            if counted[0] == call and not after:
                raise Crash
            change(*arguments)
            if counted[0] == call:
                raise Crash

        return wrapper

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "delete", crashing(Place.delete))
        patch.setattr(stages, "publish_bytes", crashing(publish_bytes))
        yield counted


def work_on(stage: Stage, identity: dict[str, Any], overwrite: bool = False) -> State:
    """A stage with one file, whose content is its configuration."""
    state = stage.begin(identity, overwrite)
    file = stage.folder / "part"
    if state is not State.DONE:
        if not file.exists():
            publish_bytes(file, stage.work, repr(identity).encode())
        stage.commit({"format": stage.format, **identity}, Run())
    return state


def require_finished(stage: Stage, identity: dict[str, Any]) -> None:
    assert sorted(info.base_name for info in stage.folder.children(recursive=True)) == [
        "dataset.json",
        "part",
        "run.json",
    ]
    assert (stage.folder / "part").read_bytes() == repr(identity).encode()
    assert stage.read_marker()["config"] == identity["config"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", range(1, 30))
def test_a_crash_at_any_step_of_replacing_a_stage(call: int, after: bool, tmp_path: Path) -> None:
    stage = Stage("normalize", open_place(str(tmp_path)) / "stage", "dataset.json", "test/1")
    work_on(stage, OLD)
    with crash_at(call, after) as counted:
        try:
            work_on(stage, NEW, overwrite=True)
        except Crash:
            pass
    if counted[0] < call:
        assert call > 8, "the crash never came"
        return
    if stage.marker.exists():  # what readers see is whole: the old or the new
        marker = stage.read_marker()
        assert (stage.folder / "part").read_bytes() == repr({key: marker[key] for key in OLD}).encode()
    if not (stage.marker.exists() and stage.read_marker()["config"] == OLD["config"]):
        work_on(stage, NEW)  # without --overwrite: it goes on
        work_on(stage, NEW)
        require_finished(stage, NEW)


def test_an_unfinished_stage_of_another_configuration_is_begun_afresh(tmp_path: Path) -> None:
    stage = Stage("normalize", open_place(str(tmp_path)) / "stage", "dataset.json", "test/1")
    assert stage.begin(OLD) is State.FRESH
    publish_bytes(stage.folder / "part", stage.work, b"old")
    assert stage.begin(OLD) is State.RESUMED
    assert (stage.folder / "part").exists()
    assert stage.begin(NEW) is State.FRESH
    assert not (stage.folder / "part").exists()


def test_another_format_is_refused(tmp_path: Path) -> None:
    stage = Stage("normalize", open_place(str(tmp_path)) / "stage", "dataset.json", "test/1")
    work_on(stage, OLD)
    with pytest.raises(UsageError, match="has format 'test/1', this version reads 'test/2'"):
        Stage("normalize", stage.folder, "dataset.json", "test/2").read_marker()

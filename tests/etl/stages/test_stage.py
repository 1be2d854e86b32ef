"""Beginning, resuming, renewing and replacing a stage, and a failure of any of its calls of storage."""

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.stages import lease
from etl.stages.layout import normalized_stage, raw_stage, slices_stage, slices_stage_in, verification_stage
from etl.stages.lease import Owner
from etl.stages.marker import EntryTable, difference, fingerprint_of
from etl.stages.run import Mode, Run, RunRecord
from etl.stages.stage import Stage
from etl.storage.atomic import publish_bytes, withdraw
from etl.storage.place import Place, json_bytes, open_place
from tests.etl.conftest import names_below
from tests.lib.faults import Fault, FaultError, faulty
from tests.lib.generations import generation_of

OLD: dict[str, Any]
NEW: dict[str, Any]
OLD, NEW = {"config": {"size": 1}, "input": "x"}, {"config": {"size": 2}, "input": "x"}
FILES = EntryTable("files", pa.schema([("name", pa.string())]), lambda entry: [f"files/{entry['name']}"])


@contextmanager
def pose_as_ended_process() -> Iterator[None]:
    """Within the block, leases are those of a process that is dead when the next one looks."""
    gone = dataclasses.replace(Owner.this_process(), started="never")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease.Owner, "this_process", classmethod(lambda cls: gone))
        yield


def stage_in(place: Place) -> Stage:
    place /= "stage"
    return Stage("normalize", place, "dataset.json", "test/1", file_folders=("files",), entries=FILES)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return stage_in(open_place(str(tmp_path)))


def begun(run: Run | None) -> Run:
    assert run is not None
    return run


def work_on(stage: Stage, identity: dict[str, Any], overwrite: bool = False) -> bool:
    """A stage with one file, published by a task, whose content is its configuration; False if it was done."""
    if (run := stage.begin(identity, overwrite=overwrite)) is None:
        return False
    with run:
        file = stage.folder / "part"
        if not file.exists():
            publish_bytes(file, run.open_tasks(), repr(identity).encode())
        run.commit({"format": stage.format, **identity}, RunRecord())
    return True


def require_finished(stage: Stage, identity: dict[str, Any]) -> None:
    assert names_below(stage.folder) == ["dataset.json", "part", "run.json"]
    assert (stage.folder / "part").read_bytes() == repr(identity).encode()
    assert stage.read_marker()["config"] == identity["config"]


def replace_with(fault: Fault, place: Place) -> None:
    try:
        work_on(stage_in(faulty(place, fault)), NEW, overwrite=True)
    except (FaultError, EnvironmentFailure):
        assert fault.hit


def require_sound(place: Place) -> None:
    """What readers see is whole: the old or the new; and what is neither goes on, without --overwrite."""
    stage = stage_in(place)
    if stage.marker.exists():
        marker = stage.read_marker()
        assert (stage.folder / "part").read_bytes() == repr({key: marker[key] for key in OLD}).encode()
        if marker["config"] == OLD["config"]:
            return
    work_on(stage, NEW)
    work_on(stage, NEW)
    require_finished(stage, NEW)


def replace_stages(faults: Mapping[str, Fault], place: Place) -> None:
    """A stage for each fault, by name; many at once, for on HDFS most of the time is spent waiting."""
    places = [place / name for name in faults]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda each: work_on(stage_in(each), OLD), places))
        with pose_as_ended_process():
            list(pool.map(replace_with, faults.values(), places))
        list(pool.map(require_sound, places))


def count_calls(place: Place) -> int:
    fault = Fault()
    replace_stages({"counted": fault}, place)
    assert {"create", "write", "close", "rename", "delete", "list"} <= set(fault.calls)
    assert len(fault.calls) > 30, fault.calls
    return len(fault.calls)


def every_fault(place: Place, after: bool, dies: bool) -> dict[str, Fault]:
    return {str(number): Fault(number, after, dies) for number in range(1, count_calls(place) + 1)}


by_way = pytest.mark.parametrize(
    ("after", "dies"),
    [*itertools.product((False, True), repeat=2)],
    ids=["before-fails", "before-dies", "after-fails", "after-dies"],
)


@by_way
def test_any_call_of_replacing_a_stage_may_fail(after: bool, dies: bool, tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    faults = every_fault(place, after, dies)
    replace_stages(faults, place)
    assert all(fault.hit for fault in faults.values())


def test_calls_of_replacing_a_stage_on_hdfs_may_fail(hdfs_root: Place) -> None:
    """A sample of them: six calls, failing before and after they take effect, half of them with all that follow."""
    numbers = random.Random(5).sample(range(1, count_calls(hdfs_root) + 1), 6)
    faults = {
        f"{number}-{after}": Fault(number, after, dies=(index + after) % 2 == 0)
        for index, number in enumerate(numbers)
        for after in (False, True)
    }
    replace_stages(faults, hdfs_root)
    assert all(fault.hit for fault in faults.values())


@pytest.mark.chaos
@by_way
def test_any_call_of_replacing_a_stage_on_hdfs_may_fail(after: bool, dies: bool, hdfs_root: Place) -> None:
    replace_stages(every_fault(hdfs_root, after, dies), hdfs_root)


def test_a_task_of_a_killed_run_publishes_nothing_into_one_that_begins_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pose_as_ended_process():
        tasks = begun(stage.begin(OLD)).open_tasks()
    publish_bytes(stage.folder / "part", tasks, b"")

    def withdraw_and_publish(place: Place, staging: Place) -> None:
        withdraw(place, staging)
        if place.name == "part":
            with pytest.raises(EnvironmentFailure):
                publish_bytes(place, tasks, b"of a task that is still at work")

    monkeypatch.setattr("etl.stages.run.withdraw", withdraw_and_publish)
    with begun(stage.begin(NEW)):
        assert not (stage.folder / "part").exists()


def test_files_that_no_stage_wrote_are_not_touched(stage: Stage, tmp_path: Path) -> None:
    for name in ("thesis", "_work", "_work/driver-000001-ab"):
        (tmp_path / "stage" / name).mkdir(parents=True)
        before = sorted(tmp_path.rglob("*"))
        for overwrite in (False, True):
            with pytest.raises(UsageError, match=r"has files but neither dataset\.json nor a plan"):
                stage.begin(OLD, overwrite=overwrite)
        assert sorted(tmp_path.rglob("*")) == before
    Path(stage.plan.path).write_text('{"stage": "another"}')
    with pytest.raises(UsageError, match="has files but"):
        stage.reopen(OLD)


LATER: dict[str, Any] = {"config": {"size": 1}, "input": "y"}
LAST: dict[str, Any] = {"config": {"size": 1}, "input": "z"}


def parent_of(stage: Stage) -> str | None:
    return stage.read_generation().fingerprint if stage.marker.exists() else None


def renew(stage: Stage, identity: dict[str, Any]) -> Mode | None:
    """A stage whose every generation adds a file called after its input, with that input as its content."""
    names = names_of(stage) if stage.marker.exists() else []
    if (run := stage.renew(identity, parent_of(stage))) is None:
        return None
    with run:
        file = stage.folder / "files" / identity["input"]
        if not file.exists():
            publish_bytes(file, run.open_tasks(), identity["input"].encode())
        files = FILES.publish(stage.folder, run.staging, [{"name": name} for name in [*names, identity["input"]]])
        marker = {"format": stage.format, **identity, "removed": None, "files": files}
        run.commit(marker, RunRecord(), {"beside": b"new"})
    return run.mode


def names_of(stage: Stage) -> list[str]:
    return [entry["name"] for entry in stage.read_generation().entries]


def files_of(stage: Stage) -> list[str]:
    """All files but the tables of entries, which are those that the generations name."""
    generations = [*stage.earlier_generations(), *([stage.read_generation()] if stage.marker.exists() else [])]
    tables = {each.marker["files"]["file"] for each in generations if "files" in each.marker}
    files = [info.path[len(stage.folder.path) + 1 :] for info in stage.folder.children(True) if info.is_file]
    assert {name for name in files if name.startswith("tables/")} == tables
    return [name for name in files if not name.startswith("tables/")]


def test_a_difference_is_named() -> None:
    limits = {"pixels": 5, "frames": 3}
    there, asked = ({"config": {"size": 1, "limits": limits | more}} for more in ({}, {"pixels": 6}))
    assert difference(there, asked) == "limits pixels 5 there, 6 asked"
    assert difference({"config": {"slices": {"train": 8, "test": 2}}}, {"config": {"slices": {"train": 8}}})
    assert not difference(there, there)
    assert len(difference({"config": {"classes": ["name"] * 3000}}, {"config": {"classes": None}})) < 300


def test_a_renewal_keeps_what_was_there(root: Place) -> None:
    stage = stage_in(root)
    assert [renew(stage, OLD), renew(stage, OLD)] == [Mode.NEW, None]
    first = stage.marker.read_bytes()
    fingerprint = stage.fingerprint()
    assert [renew(stage, LATER), renew(stage, LATER)] == [Mode.RENEWAL, None]
    assert (stage.folder / "generations" / f"{fingerprint}.json").read_bytes() == first
    assert generation_of(stage, fingerprint).marker == json.loads(first)
    assert generation_of(stage, stage.fingerprint()) == stage.read_generation()
    assert stage.find_generation("0" * 64) is None
    assert stage.find_generation("../dataset") is None
    assert names_of(stage) == ["x", "y"]
    kept = ["beside", "dataset.json", "files/x", "files/y", f"generations/{fingerprint}.json", "run.json"]
    assert files_of(stage) == kept
    with pytest.raises(UsageError, match="size 1 there, 2 asked"):
        renew(stage, NEW)
    with pytest.raises(UsageError, match="made from other input"):
        work_on(stage, OLD)
    assert files_of(stage) == kept
    assert work_on(stage_in(root), NEW, overwrite=True)
    require_finished(stage, NEW)


def test_a_renewal_planned_before_another_is_refused(stage: Stage) -> None:
    for identity, later in ((OLD, LATER), (LATER, LAST)):
        parent = parent_of(stage)
        renew(stage, identity)
        with pytest.raises(EnvironmentFailure, match="another run has written"):
            stage.renew(later, parent)


def test_an_unfinished_renewal_goes_on_and_that_of_other_input_is_cleared_away(stage: Stage, tmp_path: Path) -> None:
    renew(stage, OLD)
    before = stage.marker.read_bytes()
    for is_resumed in (False, True):
        with begun(stage.renew(LATER, parent_of(stage))) as run:
            assert run.is_resumed is is_resumed
            if not is_resumed:
                publish_bytes(stage.folder / "files" / "y", run.staging, b"y")
    run = begun(stage.renew(LAST, parent_of(stage)))
    assert not run.is_resumed
    assert sorted(path.name for path in (tmp_path / "stage/files").iterdir()) == ["x"]
    assert stage.marker.read_bytes() == before
    run.release()
    assert renew(stage, OLD) is None  # the source went back to what it was
    assert files_of(stage) == ["beside", "dataset.json", "files/x", "run.json"]


def test_a_stage_that_is_repeated_replaces_its_marker(stage: Stage) -> None:
    """Readers have the old marker until the new one is there; an unfinished repetition is resumed."""

    def is_resumed(identity: dict[str, Any], finishes: bool = True) -> bool:
        with stage.reopen(identity) as run:
            if finishes:
                run.commit({"format": stage.format, **identity}, RunRecord())
            else:
                publish_bytes(stage.work / "half", run.staging, b"")
            return run.is_resumed

    assert [is_resumed(OLD), is_resumed(OLD), is_resumed(NEW), is_resumed(OLD, finishes=False)] == [False] * 4
    assert stage.read_marker()["config"] == NEW["config"]
    assert [is_resumed(OLD), is_resumed(OLD, finishes=False), is_resumed(NEW)] == [True, False, False]
    assert files_of(stage) == ["dataset.json", "run.json"]


@pytest.mark.parametrize("change", [lambda data: data.replace(b"x", b"z"), lambda data: data + b" "])
def test_a_damaged_earlier_marker_is_not_used(change: Callable[[bytes], bytes], stage: Stage, tmp_path: Path) -> None:
    renew(stage, OLD)
    fingerprint = stage.fingerprint()
    renew(stage, LATER)
    assert stage.find_generation(fingerprint) is not None
    kept = tmp_path / "stage/generations" / f"{fingerprint}.json"
    kept.with_name(".nfs0001").touch()  # of a client of NFS
    assert [each.fingerprint for each in stage.earlier_generations()] == [fingerprint]
    kept.write_bytes(change(kept.read_bytes()))
    assert stage.find_generation(fingerprint) is None


@pytest.mark.parametrize("make", [raw_stage, normalized_stage])
def test_a_marker_without_its_fields_is_damaged(make: Callable[[Place], Stage], tmp_path: Path) -> None:
    stage = make(open_place(str(tmp_path)))
    data = json_bytes({"format": stage.format})
    (tmp_path / stage.folder.name).mkdir()
    (tmp_path / stage.folder.name / "dataset.json").write_bytes(data)
    for read in (stage.read_marker, lambda: stage.find_generation(fingerprint_of(data))):
        with pytest.raises(DataError, match=r"dataset\.json was edited or damaged: config is missing"):
            read()


ASSIGNS = " --overwrite, which assigns its splits again"


@pytest.mark.parametrize(
    ("make", "command", "option"),
    [
        (raw_stage, "ringslice ingest SOURCE {root}", " --overwrite"),
        (normalized_stage, "ringslice normalize {root}", " --overwrite"),
        (lambda root: slices_stage(root, "x"), "ringslice shard {root} --name x", ASSIGNS),
        (lambda root: verification_stage(root, "x"), "ringslice verify {root} --name x", ""),
        (lambda root: slices_stage_in(root / "x"), "ringslice shard ROOT --name x", ASSIGNS),
    ],
)
def test_a_stage_names_its_command(make: Callable[[Place], Stage], command: str, option: str, tmp_path: Path) -> None:
    stage, command = make(open_place(str(tmp_path))), command.format(root=tmp_path)
    with pytest.raises(UsageError, match=rf"has no finished {stage.name} .*; run: {command}$"):
        stage.read_marker()
    stage.folder.make_folder()
    Path(stage.marker.path).write_text('{"format": "ringslice.x/0"}')
    remedy = rf"make it again with: {command}{option} \(or use"
    with pytest.raises(UsageError, match=rf"has format 'ringslice\.x/0', this version reads '.*'.*; {remedy}"):
        stage.read_marker()

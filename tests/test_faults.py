"""Whole stages, with a call of storage that fails, or a process that is gone from it on: run again, the same bytes."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.errors import RingsliceError
from etl.raw.ingest import ingest
from etl.storage import place
from etl.storage.local import LocalFilesystem
from etl.storage.place import open_place
from mapreduce.normalize import Normalize
from mapreduce.shard import Shard
from tests.etl.stages.test_stage import as_a_process_that_is_gone
from tests.lib.commands import contents, copy_some
from tests.lib.faults import Fault, FaultError, FaultyFilesystem
from tests.lib.inline import ingest_values

SAMPLE = 8
VALUES = ingest_values(pack_size="3000", packs_at_once="1")

Run = Callable[[Path, Path], None]


def run_ingest(source: Path, root: Path) -> None:
    ingest(open_place(str(source)), open_place(str(root)), VALUES)


def run_normalize(source: Path, root: Path) -> None:
    del source
    Normalize(["-r", "inline", str(root), "--size", "8", "--color", "gray", "--format", "png"]).run_job()


def run_shard(source: Path, root: Path) -> None:
    del source
    Shard(["-r", "inline", str(root), "--workers", "2", "--split", "train=0.5,test=0.5"]).run_job()


STAGES: dict[str, Run] = {"raw": run_ingest, "normalized": run_normalize, "slices": run_shard}


@pytest.fixture(scope="module")
def source(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_some(digits, tmp_path_factory.mktemp("few"), "01", slice(24))


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    for run in STAGES.values():
        run(source, root)
    return root


def with_fault(run: Run, source: Path, root: Path, fault: Fault) -> None:
    """Run a stage on local files whose calls go through ``fault``, as a process that is dead afterwards."""
    with as_a_process_that_is_gone(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "_LOCAL", FaultyFilesystem(LocalFilesystem(), fault))
        try:
            run(source, root)
        except (FaultError, RingsliceError):
            assert fault.hit


def fail_and_run_again(stage: str, fault: Fault, source: Path, undisturbed: Path, root: Path) -> None:
    for earlier in list(STAGES)[: list(STAGES).index(stage)]:
        shutil.copytree(undisturbed / earlier, root / earlier)
    with_fault(STAGES[stage], source, root, fault)
    STAGES[stage](source, root)
    assert contents(root / stage, "run.json") == contents(undisturbed / stage, "run.json"), fault


def count_calls(stage: str, source: Path, undisturbed: Path, root: Path) -> int:
    fault = Fault()
    fail_and_run_again(stage, fault, source, undisturbed, root)
    assert {"create", "write", "close", "rename", "delete", "list"} <= set(fault.calls)
    return len(fault.calls)


@pytest.mark.parametrize("stage", STAGES)
def test_some_calls_fail(stage: str, source: Path, undisturbed: Path, tmp_path: Path) -> None:
    number = count_calls(stage, source, undisturbed, tmp_path / "counted")
    generator = random.Random(stage)
    for call in generator.sample(range(1, number + 1), SAMPLE):
        fault = Fault(call, after=generator.random() < 0.5, dies=generator.random() < 0.5)
        fail_and_run_again(stage, fault, source, undisturbed, tmp_path / str(call))


@pytest.mark.chaos
@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stage", STAGES)
def test_every_call_fails(  # noqa: PLR0917 - fixtures
    stage: str, after: bool, dies: bool, source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    for call in range(1, count_calls(stage, source, undisturbed, tmp_path / "counted") + 1):
        fail_and_run_again(stage, Fault(call, after, dies), source, undisturbed, tmp_path / str(call))

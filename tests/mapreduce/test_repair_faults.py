"""A repair that dies in the middle: what it leaves is damaged as before, or right; a second one ends it."""

import random
import shutil
from pathlib import Path

import pytest

from etl.errors import RingsliceError
from etl.storage import place
from etl.storage.local import LocalFilesystem
from tests.etl.stages.test_stage import as_a_process_that_is_gone
from tests.lib.commands import contents
from tests.lib.faults import Fault, FaultError, FaultyFilesystem
from tests.mapreduce.test_verify import FIRST, SLICES, flip, remove, root, several, source, verify, whole

__all__ = ["root", "source", "whole"]  # fixtures

SAMPLE = 8

damage = several(
    flip(f"{SLICES}/{FIRST}.tfrecord", 150),
    remove(f"{SLICES}/{FIRST}.idx"),
    flip(f"{SLICES}/examples.parquet", 200),
    flip("normalized/parts/pack-00001.tfrecord", 300),
    remove("normalized/parts/pack-00000.parquet"),
)


def repair_with(fault: Fault, whole: Path, root: Path) -> None:
    """Damage a copy, have its repair fail or die at ``fault``, look at what it left, and repair it again."""
    shutil.copytree(whole, root)
    damage(root)
    damaged, right = contents(root), contents(whole)
    with as_a_process_that_is_gone(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "_LOCAL", FaultyFilesystem(LocalFilesystem(), fault))
        try:
            verify(root, "--every-stage", "--repair")
        except (FaultError, RingsliceError, FileNotFoundError):
            assert fault.hit
    for name, data in contents(root).items():
        if "_work/" not in name and not name.startswith("verified/"):
            assert data in (damaged.get(name), right[name]), f"{name} after {fault}"
    assert verify(root, "--every-stage", "--repair") == (set(), "")
    shutil.rmtree(root / "verified")
    assert contents(root) == right


def count_calls(whole: Path, root: Path) -> int:
    fault = Fault()
    repair_with(fault, whole, root)
    return len(fault.calls)


@pytest.mark.integration
def test_some_calls_fail(whole: Path, tmp_path: Path) -> None:
    number, generator = count_calls(whole, tmp_path / "counted"), random.Random(5)
    for call in generator.sample(range(1, number + 1), SAMPLE):
        fault = Fault(call, after=generator.random() < 0.5, dies=generator.random() < 0.5)
        repair_with(fault, whole, tmp_path / str(call))


@pytest.mark.chaos
@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_every_call_fails(after: bool, dies: bool, whole: Path, tmp_path: Path) -> None:
    for call in range(1, count_calls(whole, tmp_path / "counted") + 1):
        repair_with(Fault(call, after, dies), whole, tmp_path / str(call))

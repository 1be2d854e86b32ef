"""A repair that dies in the middle: what it leaves is damaged as before, or right; a second one completes it."""

import shutil
from pathlib import Path

import pytest

from etl.errors import RingsliceError
from etl.storage import place
from etl.storage.local import LocalFilesystem
from tests.etl.stages.test_stage import as_a_process_that_is_gone
from tests.lib.commands import contents
from tests.lib.faults import Fault, FaultError, FaultyFilesystem, faults, some_and_every_call
from tests.mapreduce.test_verify import FIRST, SLICES, flip, remove, root, several, source, verify, whole

__all__ = ["root", "source", "whole"]  # fixtures

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


@pytest.mark.integration
@some_and_every_call
def test_calls_of_storage_fail(sample: int | None, whole: Path, tmp_path: Path) -> None:
    counted = Fault()
    repair_with(counted, whole, tmp_path / "counted")
    for number, fault in enumerate(faults(len(counted.calls), sample)):
        repair_with(fault, whole, tmp_path / str(number))
        shutil.rmtree(tmp_path / str(number))

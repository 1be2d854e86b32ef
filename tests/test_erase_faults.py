"""An erasure with a call of storage that fails, or a process that is gone from it on: run again, the same bytes."""

import random
import shutil
from pathlib import Path

import pytest

from etl.errors import RingsliceError
from etl.storage import place
from etl.storage.local import LocalFilesystem
from tests.etl.stages.test_stage import as_a_process_that_is_gone
from tests.lib.commands import contents, copy_some
from tests.lib.faults import Fault, FaultError, FaultyFilesystem
from tests.lib.inline import erase_here, ingest_here, normalize_here, shard_here

SAMPLE, STRIDE = 2, 4
SHARES = ("--workers", 2, "--split", "train=0.5,test=0.5", "--splits-from", "newest")
NORMALIZED = ("--size", 8, "--color", "gray", "--format", "png")


@pytest.fixture(scope="module")
def nights(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights of a few digits; one was deleted between them, and one has two copies in other packs."""
    folder = tmp_path_factory.mktemp("few")
    source, root = copy_some(digits, folder / "source", "01", slice(12)), folder / "root"
    zeros = sorted((source / "0").iterdir())
    shutil.copy(zeros[0], source / "1" / "copy.png")
    for name in ("first", "second"):
        ingest_here(source, root, pack_size="3000", packs_at_once="1", max_removed="1")
        normalize_here(root, *NORMALIZED)
        shard_here(root, *SHARES, "--name", name)
        zeros[3].unlink(missing_ok=True)
    (folder / "keys.txt").write_text(f"0/{zeros[0].name}\n0/{zeros[3].name}\n")
    return folder


@pytest.fixture(scope="module")
def undisturbed(nights: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("undisturbed") / "root"
    shutil.copytree(nights / "root", root)
    facts = erase_here(root, nights / "keys.txt", slices=True).facts
    assert facts["slices_made_anew"] == ["first", "second"]
    return contents(root, "run.json")


def fail_and_run_again(fault: Fault, nights: Path, undisturbed: dict[str, bytes], root: Path) -> None:
    shutil.copytree(nights / "root", root)
    with as_a_process_that_is_gone(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "_LOCAL", FaultyFilesystem(LocalFilesystem(), fault))
        try:
            erase_here(root, nights / "keys.txt", slices=True)
        except (FaultError, RingsliceError):
            assert fault.hit
    assert all((root / f"slices/{name}/manifest.json").exists() or _is_on_the_way(root, name) for name in NAMES)
    erase_here(root, nights / "keys.txt", slices=True)
    assert contents(root, "run.json") == undisturbed, fault
    assert not list(root.rglob("_work")), fault
    shutil.rmtree(root)


NAMES = ("first", "second")


def _is_on_the_way(root: Path, name: str) -> bool:
    """Whether finished slices lie where the next run takes them from."""
    return (root / f"erased/_work/slices/{name}/manifest.json").exists()


def count_calls(nights: Path, undisturbed: dict[str, bytes], root: Path) -> int:
    fault = Fault()
    fail_and_run_again(fault, nights, undisturbed, root)
    assert {"create", "write", "close", "rename", "delete", "list"} <= set(fault.calls)
    return len(fault.calls)


def test_some_calls_fail(nights: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    number = count_calls(nights, undisturbed, tmp_path / "counted")
    generator = random.Random("erase")
    for call in generator.sample(range(1, number + 1), SAMPLE):
        fault = Fault(call, after=generator.random() < 0.5, dies=generator.random() < 0.5)
        fail_and_run_again(fault, nights, undisturbed, tmp_path / str(call))


@pytest.mark.chaos
@pytest.mark.parametrize("dies", [False, True], ids=["fails", "dies"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_every_call_fails(after: bool, dies: bool, nights: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    number = count_calls(nights, undisturbed, tmp_path / "counted")
    for call in range(1 + 2 * after + dies, number + 1, STRIDE):  # every call fails in one of the four ways
        fail_and_run_again(Fault(call, after, dies), nights, undisturbed, tmp_path / str(call))

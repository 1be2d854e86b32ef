"""Renewals that are stopped in the middle by signals, and run again; tests/test_faults.py has every call of storage."""

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lib.commands import contents, copy_some
from tests.test_faults import require_earlier_generations
from tests.test_interrupts import CTRL_C, KILL, TRIES, Running, Stage, Stop, stop_what_runs

__all__ = ["stop_what_runs"]  # a fixture

WORDS = ("--size", "28", "--color", "gray", "--format", "png")
RENEWALS = {
    "raw": Stage("ingest", "raw", ("--pack-size", "4KB"), "raw/dataset.json", "raw/packs/*.parquet"),
    "normalized": Stage("normalize", "normalized", WORDS, "normalized/dataset.json", "normalized/parts/*.parquet"),
}
by_stage = pytest.mark.parametrize("stage", RENEWALS)


@dataclass(frozen=True)
class Nights:
    """A source as it is on the second night, and two roots: as the first night left it, and the second."""

    source: Path
    first: Path
    second: Path

    def copy_for(self, stage: str, root: Path) -> Path:
        """A root in which only ``stage`` is still that of the first night."""
        shutil.copytree(self.first, root)
        if stage == "normalized":
            shutil.rmtree(root / "raw")
            shutil.copytree(self.second / "raw", root / "raw")
        return root


def change(source: Path, digits: Path, images: slice) -> None:
    """Some images go, one changes, and the digits of these numbers come."""
    gone, changed = sorted((source / "1").iterdir())[:2]
    gone.unlink()
    changed.write_bytes(changed.read_bytes() + b"!")
    copy_some(digits, source, "029", images)


@pytest.fixture(scope="module")
def many(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """More, by the commands, so that there is time to stop them."""
    folder = tmp_path_factory.mktemp("many")
    nights = Nights(folder / "source", folder / "first", folder / "second")
    shutil.copytree(digits / "1", nights.source / "1")
    for root in (nights.first, nights.second):
        for stage in RENEWALS.values():
            running = Running(stage, nights.source, root)
            assert running.wait() == 0, running.told()
        if root == nights.first:
            shutil.copytree(nights.first, nights.second)
            change(nights.source, digits, slice(1000))
    return nights


def stop_at_work(renewed: Stage, source: Path, root: Path, how: Stop) -> bool:
    """Begin a renewal and stop it once it published a file of its own; false where it was done before that."""
    marker, before = (root / renewed.marker).read_bytes(), len(list(root.glob(renewed.sign)))
    running = Running(renewed, source, root)
    if not running.met(lambda: len(list(root.glob(renewed.sign))) > before):
        return False
    running.stop(how)
    if running.process.returncode == 0 or (root / renewed.marker).read_bytes() != marker:
        return False
    assert running.process.returncode == (-signal.SIGKILL if how is KILL else 130)
    return True


@pytest.mark.integration
@by_stage
@pytest.mark.parametrize("how", [KILL, CTRL_C], ids=["kill-9", "ctrl-c"])
def test_a_renewal_that_was_stopped_goes_on(stage: str, how: Stop, many: Nights, tmp_path: Path) -> None:
    renewed = RENEWALS[stage]
    for number in range(TRIES):
        root = many.copy_for(stage, tmp_path / str(number))
        if stop_at_work(renewed, many.source, root, how):
            break
    else:
        pytest.fail(f"{stage} was done before it was stopped, {TRIES} times")
    require_earlier_generations(root)
    again = Running(renewed, many.source, root)
    assert again.wait() == 0, again.told()
    assert contents(root / stage, "run.json") == contents(many.second / stage, "run.json")
    require_earlier_generations(root)


@pytest.mark.integration
def test_a_killed_renewal_whose_source_went_on_leaves_nothing(digits: Path, many: Nights, tmp_path: Path) -> None:
    root, renewed = many.copy_for("raw", tmp_path / "root"), RENEWALS["raw"]
    running = Running(renewed, many.source, root)
    running.wait_until(lambda: len(list(root.glob(renewed.sign))) > len(list(many.first.glob(renewed.sign))))
    running.stop(KILL)
    source = tmp_path / "source"
    shutil.copytree(many.source, source)
    for path in sorted((source / "9").iterdir())[:5]:
        path.unlink()
    for each in (root, shutil.copytree(many.first, tmp_path / "undisturbed")):
        done = Running(renewed, source, each)
        assert done.wait() == 0, done.told()
    assert contents(root / "raw", "run.json") == contents(tmp_path / "undisturbed" / "raw", "run.json")

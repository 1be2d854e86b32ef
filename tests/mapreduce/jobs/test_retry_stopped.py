"""--retry-rejects that is killed and run again: nothing is lost; tests/test_faults.py has every call of storage."""

import shutil
import signal
from pathlib import Path

import pytest
from PIL import Image

from tests.lib.commands import contents, copy_some
from tests.lib.inline import ingest_here, normalize_here, shard_here
from tests.mapreduce.jobs.test_retry_rejects import RETRY, WORDS, reasons_of, require_nothing_is_lost
from tests.mapreduce.test_verify import verify
from tests.test_interrupts import KILL, TRIES, Running, Stage, stop_what_runs

NARROW, WIDE = ((*WORDS, "--size", "128", "--max-aspect", aspect) for aspect in ("2", "10"))

__all__ = ["stop_what_runs"]  # a fixture


@pytest.fixture(scope="module")
def many(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in many packs, with images of two shapes among them that are rejects, or one alone."""
    folder = tmp_path_factory.mktemp("many")
    copy_some(digits, folder / "source", "012", slice(40))
    for number, path in enumerate(sorted((folder / "source").rglob("*.png"))):
        if number % 3 == 0:
            Image.effect_noise((64, 20), 99).save(path)
        elif number % 10 == 7:
            Image.new("RGB", (400, 1)).save(path)
    ingest_here(folder / "source", folder / "root", pack_size="4KB")
    return folder / "root"


def kill_and_run_again(stage: Stage, begun: Path, root: Path, pattern: str) -> Path:
    """Kill all processes of a stage once it has published such a part, run it again; returns the root."""
    for number in range(TRIES):
        stopped = shutil.copytree(begun, root / str(number))
        before = contents(stopped / "normalized").get("dataset.json")
        running = Running(stage, stopped, stopped)
        if running.met(lambda: any((stopped / "normalized/parts").glob(pattern))):  # noqa: B023 - called in this turn
            running.stop(KILL)
            unfinished = contents(stopped / "normalized").get("dataset.json") == before
            if running.process.returncode == -signal.SIGKILL and unfinished:
                break
    else:
        pytest.fail(f"{stage.name} was done before it was killed, {TRIES} times")
    again = Running(stage, stopped, stopped)
    assert again.wait() == 0, again.told()
    require_nothing_is_lost(stopped)
    return stopped


@pytest.mark.integration
def test_nothing_is_lost_by_kill_9(many: Path, tmp_path: Path) -> None:
    """In the middle of a normalisation, then of --retry-rejects; by real processes."""
    root, undisturbed = many, shutil.copytree(many, tmp_path / "undisturbed")
    for words, pattern in ((NARROW, "pack-*.parquet"), ((*WIDE, RETRY), "*.1.parquet")):
        stage = Stage("normalize", "normalized", words, "normalized/dataset.json", "")
        root = kill_and_run_again(stage, root, tmp_path / pattern[0], pattern)
        normalize_here(undisturbed, *words)
        assert contents(root / "normalized", "run.json") == contents(undisturbed / "normalized", "run.json")
    assert set(reasons_of(root).values()) == {"bad-aspect"}
    shard_here(root, "--workers", "1", "--split", "train=1")
    assert verify(root, "--every-stage") == (set(), "")

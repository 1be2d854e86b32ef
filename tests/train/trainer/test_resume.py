"""A run that was stopped after any of its steps goes on with any number of ranks: real processes, real checkpoints."""

import json
import shutil
from pathlib import Path

import pytest

from etl.storage.place import open_place
from tests.lib.commands import contents, flip_bit, horovodrun, succeeded
from tests.lib.ranks.audits import require_each_key_once
from train.checkpoints import store
from train.checkpoints.store import FOLDER, name_of

pytestmark = pytest.mark.integration

SCRIPT = "tests/lib/ranks/resume_steps.py"
STEPS = 20
EPOCHS = 2


@pytest.fixture(scope="module")
def whole(digits_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps on 2 ranks, with a checkpoint after each."""
    root = tmp_path_factory.mktemp("resume") / "digits"
    shutil.copytree(digits_root / "slices", root / "slices")
    succeeded(horovodrun(2, SCRIPT, root, "whole"))
    found = root / "runs" / "whole"
    assert [path.name for path in sorted((found / FOLDER).iterdir())] == [name_of(step + 1) for step in range(STEPS)]
    return found


def stop_after(whole: Path, step: int, name: str) -> Path:
    """What a trainer leaves that is killed after ``step``: and the audit of a few steps more."""
    stopped = whole.parent / name
    shutil.copytree(whole, stopped)
    (stopped / "result.json").unlink()
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(stopped / FOLDER / name_of(later))
    return stopped


def arrays(run: Path, step: int) -> dict[str, bytes]:
    return contents(run / FOLDER / name_of(step), "checkpoint.json")


def go_on(ranks: int, stopped: list[Path]) -> str:
    """Have these runs go on, one after the other; returns their log."""
    root = stopped[0].parent.parent
    return succeeded(horovodrun(ranks, SCRIPT, root, *[each.name for each in stopped], timeout_s=500)).stderr


def require_exact(whole: Path, ranks: int, stopped: list[Path]) -> None:
    """They consumed each example of both epochs once; with 2 ranks they are the whole run, bit for bit."""
    for each in stopped:
        require_each_key_once(each, whole.parent.parent / "slices" / "default", EPOCHS)
        assert f"-{STEPS}-" in each.name or list((each / "audit/rolled-back").iterdir())
        result = json.loads((each / "result.json").read_text())
        assert [epoch["epoch"] for epoch in result["epochs"]] == [1, 2]
        if ranks == 2:
            assert result["steps"] == STEPS
            assert arrays(each, STEPS) == arrays(whole, STEPS), each.name


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.chaos), 4])
def test_other_ranks_go_on_exactly(ranks: int, whole: Path) -> None:
    stopped = [stop_after(whole, 3, f"stopped-on-{ranks}")]
    go_on(ranks, stopped)
    require_exact(whole, ranks, stopped)


@pytest.mark.chaos
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_run_goes_on_exactly_after_every_step(ranks: int, whole: Path) -> None:
    stopped = [stop_after(whole, step, f"stopped-{step:02d}-on-{ranks}") for step in range(1, STEPS + 1)]
    go_on(ranks, stopped)
    require_exact(whole, ranks, stopped)


@pytest.mark.witness
def test_the_same_ranks_go_on_bit_for_bit_but_not_without_the_optimizers_state(whole: Path) -> None:
    """Two that were stopped, one whose newest checkpoint is damaged, and one that continues with another momentum."""
    stopped = [stop_after(whole, step, f"stopped-{step}") for step in (3, 10)]
    damaged, forgetful = stop_after(whole, 14, "damaged"), stop_after(whole, 10, "forgetful")
    flip_bit(damaged / FOLDER / name_of(14) / "model.safetensors", -9)
    run = open_place(str(forgetful))
    kept = store.open_checkpoint(run, 10)
    groups = {group: kept.read(group) for group in kept.groups}
    groups["optimizer"] = {name: each * 0 for name, each in groups["optimizer"].items()}
    facts = {name: value for name, value in kept.marker.items() if name not in store.OWN_FACTS}
    attempts = (run / "attempts").make_folder()
    store.write(run, attempts, 10, groups, facts)
    attempts.delete()
    assert arrays(forgetful, 10)["model.safetensors"] == arrays(whole, 10)["model.safetensors"]
    outcome = go_on(2, [*stopped, damaged, forgetful])
    require_exact(whole, 2, stopped)
    lines = [line for line in outcome.splitlines() if "is taken instead" in line]
    assert len(lines) == 1
    assert f"{name_of(14)} is removed, {name_of(13)} is taken instead" in lines[0]
    assert arrays(damaged, STEPS) == arrays(whole, STEPS)
    assert arrays(forgetful, STEPS)["model.safetensors"] != arrays(whole, STEPS)["model.safetensors"]


def test_a_stop_changes_no_bit_of_a_run_with_dropout_batch_norm_and_parts(whole: Path) -> None:
    """It commits after a step where the whole run does not; one of the 8 parts of most steps has no example."""
    root = whole.parent.parent
    options = ("--data", root, "--model", "tests.lib.ranks.tiny:tiny", "--batch", 1, "--accumulate", 8, "--epochs", 1)
    words = ("train/main.py", *options, "--lr", 1, "--deterministic")
    succeeded(horovodrun(2, *words, "--run", "unstopped", "--max-steps", 20))
    succeeded(horovodrun(2, *words, "--run", "stopped", "--max-steps", 9))
    succeeded(horovodrun(2, *words, "--run", "stopped", "--resume", "--max-steps", 20))
    assert arrays(root / "runs/stopped", 20) == arrays(root / "runs/unstopped", 20)

"""A run's checkpoint evaluated apart from its training: the trainer's own result, on any number of ranks."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.lib.commands import failed, flip_bit, horovodrun, succeeded
from tests.lib.ranks.running import FINISHED
from tests.lib.train_in_process import evaluate_here
from tests.train.conftest import TrainedRun
from train.checkpoints import store

SCRIPT = "train/evaluate.py"
STEPS = 40


@pytest.fixture(scope="module")
def mine(trained: TrainedRun, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A copy of the trained run, for evaluations to be written to."""
    return trained.copy(tmp_path_factory.mktemp("evaluate") / "root")


@pytest.fixture
def changed(trained: TrainedRun, tmp_path: Path) -> TrainedRun:
    """A copy of it, for one test to change."""
    return trained.copy(tmp_path / "root")


def read(made: TrainedRun, name: str) -> dict[str, Any]:
    return json.loads((made.folder / name).read_text())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.integration)])
def test_any_number_of_ranks_gives_the_trainers_own_result(ranks: int, mine: TrainedRun) -> None:
    theirs = read(mine, "result.json")["result"]
    words = (*mine.words, "--json", "--min-accuracy", theirs["test_accuracy"])
    outcome = succeeded(evaluate_here(*words) if ranks == 1 else horovodrun(ranks, SCRIPT, *words))
    found = read(mine, "evaluation-test.json")
    assert found["accuracy"] == theirs["test_accuracy"]
    rounding = 0 if ranks == 1 else 1e-6  # batches are summed in float32; one rank trained it
    assert found["loss"] == pytest.approx(theirs["test_loss"], rel=rounding, abs=0)
    assert (found["split"], found["examples"], found["checkpoint"]) == ("test", 240, store.name_of(STEPS))
    assert found["checkpoint_sha256"] == digest(mine.folder / f"checkpoints/{store.name_of(STEPS)}/model.safetensors")
    assert found["slices"] == digest(mine.root / "slices/default/manifest.json")
    summary = json.loads(outcome.stdout[outcome.stdout.index("{") :])
    assert (summary["ranks"], summary["accuracy"]) == (ranks, round(found["accuracy"], 4))
    assert {path.name for path in mine.folder.iterdir()} - {"logs"} == {*FINISHED, "evaluation-test.json"} - {"logs"}


@pytest.mark.integration
def test_an_accuracy_that_is_too_low_is_reported_once_and_kept(changed: TrainedRun) -> None:
    words = (*changed.words, "--split", "validation", "--min-accuracy", 1)
    outcome = horovodrun(2, SCRIPT, *words)
    accuracy = read(changed, "evaluation-validation.json")["accuracy"]
    assert accuracy == read(changed, "result.json")["epochs"][-1]["validation_accuracy"] < 1
    lines = [line for line in outcome.stderr.splitlines() if "ringslice: error:" in line]
    assert len(lines) == 1, outcome.stderr
    assert f"accuracy {accuracy:.4f} on validation is below --min-accuracy 1 ({changed.folder}" in lines[0]
    assert "Exit code: 1" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--run", "other"), "runs/other has no finished checkpoint"),
        (("--run", "mine", "--split", "dev"), "--split 'dev': "),
        (("--run", "mine", "--min-accuracy", "90"), "--min-accuracy 90 is out of range"),
        (("--run", "mine", "--name", "none"), "no slices called 'none'"),
    ],
)
def test_wrong_use(words: tuple[str, ...], line: str, mine: TrainedRun) -> None:
    before = sorted(mine.root.rglob("*"))
    failed(evaluate_here("--data", mine.root, *words), 2, line)
    assert sorted(mine.root.rglob("*")) == before


def test_a_run_that_does_not_fit_is_refused(changed: TrainedRun) -> None:
    arrays = changed.folder / f"checkpoints/{store.name_of(STEPS)}/model.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1])
    failed(evaluate_here(*changed.words), 1, f"{arrays} is damaged: it has ")
    manifest = changed.root / "slices/default/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    failed(evaluate_here(*changed.words), 2, "was trained on slices that are not in")


def test_damage_is_reported_or_skipped_as_asked(changed: TrainedRun) -> None:
    flip_bit(next((changed.root / "slices/default/test").glob("*.tfrecord")), 5000)
    failed(evaluate_here(*changed.words), 1, "is damaged at offset ")
    succeeded(evaluate_here(*changed.words, "--on-damage", "skip", "--slices-at-once", 1))
    found = read(changed, "evaluation-test.json")
    assert (found["examples"], found["skipped"]) == (240, 1)
    assert found["accuracy"] == pytest.approx(read(changed, "result.json")["result"]["test_accuracy"], abs=0.01)

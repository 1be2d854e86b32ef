"""A run that ends because it no longer gets better has the result of its best weights."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.storage.place import Place, open_place
from tests.lib.commands import Finished, succeeded
from tests.lib.ranks.running import checkpoints_of
from tests.lib.train_in_process import evaluate_here, train_here
from tests.train.conftest import TrainedRun
from train.checkpoints.store import name_of
from train.runs.hooks import Hooks
from train.runs.position import Metrics

pytestmark = pytest.mark.integration

ACCURACIES = [0.5, 0.75, 0.25, 0.25]  # on the validation split, by epoch
STEPS = 20  # of an epoch


class Judge(Hooks):
    """Gives the epochs these accuracies."""

    def __init__(self) -> None:
        self._accuracies = iter(ACCURACIES)

    def on_evaluation(self, split: str, evaluate: Callable[[], Metrics]) -> Metrics:
        return evaluate() | ({"validation_accuracy": next(self._accuracies)} if split == "validation" else {})


class FullDisk(Judge):
    """Has no room for the checkpoint of the best epoch."""

    def on_checkpoint_file(self, file: Place) -> None:
        if file.parent.name == name_of(2 * STEPS):
            raise OSError(errno.ENOSPC, "No space left on device")


def train_judged(root: Path, made: TrainedRun, judge: Judge, *more: object) -> Finished:
    """A new run, ``best``."""
    words = ("--run", "best", *made.training[4:], "--data", root, "--patience", 2, "--epochs", 9, "--json")
    return succeeded(train_here(*words, *more, hooks=judge))


def test_the_result_is_that_of_the_best_weights(stopped: TrainedRun, tmp_path: Path) -> None:
    root = stopped.copy(tmp_path / "root").root
    outcome, run = train_judged(root, stopped, Judge(), "--keep", 1), root / "runs/best"
    assert checkpoints_of(open_place(str(run))) == [2 * STEPS, 4 * STEPS]
    assert "the result is that of the best weights: epoch 2, step 40" in outcome.stderr
    result, best = json.loads((run / "result.json").read_text()), {"epoch": 2, "step": 40}
    assert (result["stopped"], result["steps"], result["weights"]) == ("no progress", 80, best)
    assert json.loads(outcome.stdout)["weights"] == best
    losses = []
    for which, step in (("best", 2 * STEPS), ("newest", 4 * STEPS)):
        succeeded(evaluate_here("--data", root, "--run", "best", "--checkpoint", which))
        found = json.loads((run / "evaluation-test.json").read_text())
        assert found["checkpoint"] == name_of(step)
        losses.append(found["loss"])
    assert [result["result"]["test_loss"] == pytest.approx(loss, abs=1e-4) for loss in losses] == [True, False]


def test_a_best_epoch_without_a_checkpoint_is_reported(stopped: TrainedRun, tmp_path: Path) -> None:
    outcome = train_judged(stopped.copy(tmp_path / "root").root, stopped, FullDisk())
    line = "epoch 2 was the best (validation accuracy 0.7500), but has no checkpoint; the result is that of epoch 1,"
    assert line in outcome.stderr
    assert json.loads(outcome.stdout)["weights"] == {"epoch": 1, "step": STEPS}


def test_other_results_name_their_weights_too(stopped: TrainedRun, trained: TrainedRun) -> None:
    for made, step in ((stopped, 25), (trained, 40)):
        assert json.loads((made.folder / "result.json").read_text())["weights"] == {"epoch": 2, "step": step}

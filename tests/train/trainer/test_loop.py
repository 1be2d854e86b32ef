"""Runs in this process: what ends them, what they refuse, and the weights that they end with."""

import errno
import json
import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from etl.errors import UsageError
from etl.stages.lease import Lease
from etl.stages.names import WORK_FOLDER
from etl.storage.place import Place, json_bytes, open_place, with_checksum
from tests.lib.commands import Finished, contents, copy_some, failed, flip_bit, succeeded
from tests.lib.inline import ingest_here, normalize_here, shard_here
from tests.lib.ranks import tiny
from tests.lib.ranks.running import FINISHED
from tests.lib.train_in_process import evaluate_here, train_here
from tests.train.conftest import MODEL, TrainedRun
from train.checkpoints import store
from train.checkpoints.store import name_of
from train.config.settings import TORCH
from train.evaluation.trained import RunCheckpoint
from train.runs.folder import find_dataset
from train.runs.hooks import Hooks
from train.runs.position import Metrics, Position
from train.tf_backend.trainer import TrainedModel


@pytest.fixture(scope="module")
def few(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slices of two classes, of the size of the trained run's."""
    folder = tmp_path_factory.mktemp("few")
    ingest_here(copy_some(digits, folder / "source", "17", slice(40)), folder / "root")
    normalize_here(folder / "root", "--size", 24)
    shard_here(folder / "root", "--workers", 2, "--split", "train=0.5,test=0.5", "--name", "few")
    return folder / "root/slices/few"


@pytest.fixture
def root(few: Path, tmp_path: Path) -> Path:
    """A root with these slices only."""
    shutil.copytree(few, tmp_path / "root/slices/few")
    return tmp_path / "root"


@pytest.fixture
def copied(trained: TrainedRun, tmp_path: Path) -> TrainedRun:
    """A copy of the trained run, for one test to change."""
    return trained.copy(tmp_path / "copy")


def resume(made: TrainedRun, *words: object) -> Finished:
    return train_here(*made.training, "--resume", "--epochs", 3, "--decay-until", 3, *words)


def test_what_no_rank_can_do(root: Path) -> None:
    words = ("--data", root, "--model", "mlp")
    batch = train_here(*words, "--batch", 41)
    failed(batch, 2, "--batch 41 is more than a rank's share of 40 of the 40 training examples;")
    device = train_here(*words, "--device", "gpu", CUDA_VISIBLE_DEVICES="")
    failed(device, 3, "or give --device cpu ($CUDA_VISIBLE_DEVICES is '', which hides all)")
    manifest = root / "slices/few/manifest.json"
    content = json.loads(manifest.read_text())
    del content["splits"]["train"], content["checksum"]
    manifest.write_bytes(json_bytes(with_checksum(content)))
    line = "root/slices/few has no training examples (test 40); give ringslice shard a --split with train="
    failed(train_here(*words), 2, line)
    assert [path.name for path in root.iterdir()] == ["slices"]


def make_newer(few: Path, root: Path) -> None:
    """Add slices that are newer than those of the run."""
    shutil.copytree(few, root / "slices/few")
    record = json.loads((root / "slices/few/run.json").read_text()) | {"finished": "2999-01-01T00:00:00.000+00:00"}
    (root / "slices/few/run.json").write_bytes(json_bytes(record))


def test_another_trainings_checkpoint(copied: TrainedRun, few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer slices, of other classes, are refused to a run that has a result."""
    before = contents(copied.root)
    line = f"was trained with other settings: --model was {MODEL}, now mlp; give what it was"
    failed(resume(copied, "--model", "mlp"), 2, line)
    with monkeypatch.context() as patch:
        patch.setattr(tiny, "normed", tiny.smooth)
        line = "is of another model: 0000-kernel is float32 of shape (3, 3, 3, 4) there, float32 of shape (1200, 32)"
        failed(resume(copied), 2, line)
    assert contents(copied.root) == before
    make_newer(few, copied.root)
    before = contents(copied.root)
    line = "step-00000040 was trained on 10 classes, these slices have 2 ('0' is in one of them only"
    failed(resume(copied), 2, line)
    assert contents(copied.root) == before


@pytest.mark.integration
def test_a_run_without_a_result_goes_on_with_its_own_slices(stopped: TrainedRun, few: Path, tmp_path: Path) -> None:
    made = stopped.copy(tmp_path / "root")
    (made.folder / "result.json").unlink()  # as if it was killed
    make_newer(few, made.root)
    outcome = succeeded(train_here(*made.training, "--resume", "--epochs", 2))
    assert "runs/mine goes on with its own slices, default; the newest are few" in outcome.stderr
    assert made.read()["steps"] == 40
    assert made.read("run.json")["versions"]["keras"] == keras.__version__


def test_two_trainers_do_not_work_on_one_run(root: Path) -> None:
    run = root / "runs/mine"
    words = ("--data", root, "--run", "mine", "--model", "mlp", "--batch", 5, "--max-steps", 1)
    lease = Lease.take(open_place(str(run / WORK_FOLDER)), "another trainer")
    failed(train_here(*words), 3, f"train/main.py on {run} is locked by process ")
    assert [path.name for path in run.iterdir()] == [WORK_FOLDER]
    lease.release()
    succeeded(train_here(*words))
    assert not (run / WORK_FOLDER).exists()


def test_the_state_is_copied_once_the_last_checkpoint_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory has one copy of it, however slow the storage is."""
    write, state, at_work = store.write, TrainedModel.state, list[list[str]]()

    def write_slowly(*words: Any, **more: Any) -> None:
        time.sleep(0.3)
        write(*words, **more)

    def noted_state(trainer: TrainedModel) -> Any:
        at_work.append([each.name for each in threading.enumerate() if each.name.startswith("checkpoint ")])
        return state(trainer)

    monkeypatch.setattr("train.checkpoints.background.write", write_slowly)
    monkeypatch.setattr(TrainedModel, "state", noted_state)
    words = ("--model", MODEL, "--crop", 20, "--batch", 15, "--checkpoint-steps", 1, "--epochs", 2)
    succeeded(train_here("--data", root, *words))
    assert len(at_work) > 2
    assert not any(at_work)


def test_a_training_that_diverges(root: Path) -> None:
    """In float16 it takes no step whose gradient is not finite, so its weights stay as they are."""
    words = ("--data", root, "--batch", 5, "--lr", "1e30", "--warmup-epochs", 0, "--epochs", 10, "--json", "--model")
    half = ("tests.lib.ranks.tiny:smooth", "--precision", "float16", "--run", "half")
    for more, line in ((("mlp", "--run", "whole"), "the loss is nan by step "), (half, "")):
        outcome = train_here(*words, *more)
        failed(outcome, 1, f"has diverged: {line}")
        assert ", at a learning rate of" in outcome.stderr
        assert outcome.stderr.count("without a validation split") == 1  # of a run that goes by its test split
        assert outcome.stdout == ""
    assert not [*root.glob("runs/*/checkpoints/*/checkpoint.json"), *root.glob("runs/*/result.json")]


def test_an_evaluation_without_a_finite_loss_ends_the_run(root: Path) -> None:
    """The last checkpoint before it stays the newest; its weights are finite, and what is made of them is not."""
    words = ("--data", root, "--run", "mine", "--model", "tests.lib.ranks.tiny:overflowing", "--batch", 5)
    outcome = train_here(*words, "--epochs", 2, "--checkpoint-steps", 5, "--json")
    failed(outcome, 1, "has diverged: the loss on test is nan after step 8, at a learning rate of ")
    assert outcome.stdout == ""
    assert [path.parent.name for path in root.glob("runs/mine/checkpoints/*/checkpoint.json")] == ["step-00000005"]
    evaluated = evaluate_here("--data", root, "--run", "mine", "--json")
    failed(evaluated, 1, "the loss on test is nan (")
    assert evaluated.stdout == ""
    assert not list(root.glob("runs/mine/*.json"))


class DamagedWeights(Hooks):
    """A weight is infinite after step 30."""

    def on_step(self, running: Any, position: Position) -> None:
        if position.step == 30:
            variable = running.trainer.model.trainable_variables[-1]
            variable.assign(variable.value * math.inf)


def test_weights_that_are_not_finite_are_no_checkpoint(stopped: TrainedRun, tmp_path: Path) -> None:
    made = stopped.copy(tmp_path / "root")
    options = ("--resume", "--epochs", 2, "--checkpoint-steps", 5)
    outcome = train_here(*made.training, *options, hooks=DamagedWeights())
    failed(outcome, 1, "/bias is not finite at step 30, at a learning rate of ")
    assert max(path.name for path in made.folder.glob("checkpoints/*")) == "step-00000025"


ACCURACIES = [0.5, 0.75, 0.25, 0.25]  # on the validation split, by epoch
EPOCH_STEPS, LAST = 20, 40  # of an epoch, and the last of the trained run


class Judge(Hooks):
    """Gives the epochs these accuracies."""

    def __init__(self) -> None:
        self._accuracies = iter(ACCURACIES)

    def on_evaluation(self, split: str, evaluate: Callable[[], Metrics]) -> Metrics:
        return evaluate() | ({"validation_accuracy": next(self._accuracies)} if split == "validation" else {})


class FullDisk(Judge):
    """Has no room for the checkpoint of the best epoch."""

    def on_checkpoint_file(self, file: Place) -> None:
        if file.parent.name == name_of(2 * EPOCH_STEPS):
            raise OSError(errno.ENOSPC, "No space left on device")


def train_judged(root: Path, made: TrainedRun, judge: Judge, *more: object) -> Finished:
    """A new run, ``best``."""
    words = ("--run", "best", *made.training[4:], "--data", root, "--patience", 2, "--epochs", 9, "--json")
    return train_here(*words, *more, hooks=judge)


@pytest.mark.integration
def test_the_result_is_that_of_the_best_weights(stopped: TrainedRun, tmp_path: Path) -> None:
    root = stopped.copy(tmp_path / "root").root
    outcome, run = succeeded(train_judged(root, stopped, Judge(), "--keep", 1)), root / "runs/best"
    assert store.steps(open_place(str(run))) == [2 * EPOCH_STEPS, 4 * EPOCH_STEPS]
    assert "the result is that of the best weights: epoch 2, step 40" in outcome.stderr
    result, best = json.loads((run / "result.json").read_text()), {"epoch": 2, "step": 40}
    assert (result["stopped"], result["steps"], result["weights"]) == ("no progress", 80, best)
    assert json.loads(outcome.stdout)["weights"] == best
    losses = []
    for which, step in (("best", 2 * EPOCH_STEPS), ("newest", 4 * EPOCH_STEPS)):
        succeeded(evaluate_here("--data", root, "--run", "best", "--checkpoint", which))
        found = json.loads((run / "evaluation-test.json").read_text())
        assert found["checkpoint"] == name_of(step)
        losses.append(found["loss"])
    assert [result["result"]["test_loss"] == pytest.approx(loss, abs=1e-4) for loss in losses] == [True, False]


@pytest.mark.integration
def test_a_best_epoch_without_a_checkpoint_is_reported(stopped: TrainedRun, tmp_path: Path) -> None:
    """And the storage that fails once ends nothing."""
    root = stopped.copy(tmp_path / "root").root
    outcome = succeeded(train_judged(root, stopped, FullDisk(), "--checkpoint-failures", 4))
    assert "checkpoint step-00000040 was not written (No space left on device" in outcome.stderr
    assert "(failure 1 of --checkpoint-failures 4)" in outcome.stderr
    line = "epoch 2 was the best (validation accuracy 0.7500), but has no checkpoint; the result is that of epoch 1,"
    assert line in outcome.stderr
    assert json.loads(outcome.stdout)["weights"] == {"epoch": 1, "step": EPOCH_STEPS}


def test_an_evaluation_gives_the_trainers_own_result(copied: TrainedRun) -> None:
    """On one rank; tests/train/trainer/test_on_hdfs.py has several."""
    theirs = copied.read("result.json")["result"]
    outcome = succeeded(evaluate_here(*copied.words, "--json", "--min-accuracy", theirs["test_accuracy"]))
    found = copied.read("evaluation-test.json")
    assert (found["accuracy"], found["loss"]) == (theirs["test_accuracy"], theirs["test_loss"])
    assert (found["split"], found["examples"], found["checkpoint"]) == ("test", 240, name_of(LAST))
    model = copied.folder / f"checkpoints/{name_of(LAST)}/model.safetensors"
    assert found["checkpoint_sha256"] == open_place(str(model)).sha256()
    assert found["slices"] == open_place(str(copied.root / "slices/default/manifest.json")).sha256()
    summary = json.loads(outcome.stdout)
    assert (summary["ranks"], summary["accuracy"]) == (1, round(found["accuracy"], 4))
    assert {path.name for path in copied.folder.iterdir()} - {"logs"} == {*FINISHED, "evaluation-test.json"} - {"logs"}
    again = json.loads(succeeded(train_here(*copied.training, "--epochs", 2, "--resume", "--json")).stdout)
    assert (again["already_done"], again["test_accuracy"]) == (True, summary["accuracy"])
    outcome = evaluate_here(*copied.words, "--split", "validation", "--min-accuracy", 1)
    accuracy = copied.read("evaluation-validation.json")["accuracy"]  # it is reported, and kept
    assert accuracy == copied.read("result.json")["epochs"][-1]["validation_accuracy"] < 1
    failed(outcome, 1, f"accuracy {accuracy:.4f} on validation is below --min-accuracy 1 ({copied.folder}")


def test_wrong_use(trained: TrainedRun) -> None:
    before = sorted(trained.root.rglob("*"))
    words: tuple[str, ...]
    for words, line in (
        (("--run", "other"), "runs/other has no finished checkpoint"),
        ((), "has a number as its name; give --run NAME, or train one"),
        (("--run", "mine", "--split", "dev"), "--split 'dev': "),
        (("--run", "mine", "--min-accuracy", "90"), "--min-accuracy 90 is out of range"),
    ):
        failed(evaluate_here("--data", trained.root, *words), 2, line)
    assert sorted(trained.root.rglob("*")) == before


def test_a_run_of_a_model_that_only_pytorch_has_is_refused(trained: TrainedRun) -> None:
    marker = {"framework": TORCH, "settings": {"group": None, "model": "googlenet"}}
    found = RunCheckpoint(str(trained.folder), marker, find_dataset(str(trained.root), None))
    with pytest.raises(UsageError, match="--model googlenet of this run cannot be converted between"):
        found.settings(data=str(trained.root))


def test_a_run_that_does_not_fit_is_refused(copied: TrainedRun) -> None:
    arrays = copied.folder / f"checkpoints/{name_of(LAST)}/model.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1])
    failed(evaluate_here(*copied.words), 1, f"{arrays} is damaged: it has ")
    manifest = copied.root / "slices/default/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    failed(evaluate_here(*copied.words), 2, "was trained on slices that are not in")


def test_damage_is_reported_or_skipped_as_asked(copied: TrainedRun) -> None:
    flip_bit(next((copied.root / "slices/default/test").glob("*.tfrecord")), 5000)
    failed(evaluate_here(*copied.words), 1, "is damaged at offset ")
    succeeded(evaluate_here(*copied.words, "--on-damage", "skip", "--slices-at-once", 1))
    found = copied.read("evaluation-test.json")
    assert (found["examples"], found["skipped"]) == (240, 1)
    assert found["accuracy"] == pytest.approx(copied.read("result.json")["result"]["test_accuracy"], abs=0.01)

"""A run's checkpoint evaluated apart from its training: the trainer's own result, on any number of ranks."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etl.storage.place import open_place
from tests.lib.commands import failed, flip_bit, horovodrun, run, succeeded
from tests.lib.ranks.running import FINISHED
from train.checkpoints import store

pytestmark = pytest.mark.integration

SCRIPT = "train/evaluate.py"


@pytest.fixture(scope="module")
def trained(digits_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with the run ``mine``, trained on 2 ranks."""
    root = tmp_path_factory.mktemp("evaluate") / "root"
    shutil.copytree(digits_root / "slices", root / "slices")
    words = ("--data", root, "--run", "mine", "--model", "cnn", "--batch", 50, "--epochs", 1, "--warmup-epochs", 0)
    succeeded(horovodrun(2, "train/main.py", *words))
    return root


def read(root: Path, name: str) -> dict[str, Any]:
    return json.loads((root / "runs" / "mine" / name).read_text())


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.chaos), 3])
def test_any_number_of_ranks_gives_the_trainers_own_result(ranks: int, trained: Path) -> None:
    theirs = read(trained, "result.json")["result"]
    words = (SCRIPT, "--data", trained, "--run", "mine", "--json", "--min-accuracy", theirs["test_accuracy"])
    told = succeeded(run("python", *words) if ranks == 1 else horovodrun(ranks, *words))
    found = read(trained, "evaluation-test.json")
    assert found["accuracy"] == theirs["test_accuracy"]
    assert found["loss"] == pytest.approx(theirs["test_loss"], rel=1e-6)  # batches sum in float32, in another order
    if ranks == 2:
        assert found["loss"] == theirs["test_loss"]
    assert (found["split"], found["examples"], found["checkpoint"]) == ("test", 180, "step-00000015")
    folder = trained / "runs/mine"
    assert found["checkpoint_sha256"] == digest(folder / "checkpoints/step-00000015/model.safetensors")
    assert found["slices"] == digest(trained / "slices/default/manifest.json")
    summary = json.loads(told.stdout[told.stdout.index("{") :])
    assert (summary["ranks"], summary["accuracy"]) == (ranks, round(found["accuracy"], 4))
    assert {path.name for path in folder.iterdir()} == {*FINISHED, "evaluation-test.json"}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_accuracy_that_is_too_low_is_told_once_and_kept(trained: Path) -> None:
    words = (SCRIPT, "--data", trained, "--run", "mine", "--split", "validation", "--min-accuracy", 1)
    told = horovodrun(2, *words)
    accuracy = read(trained, "evaluation-validation.json")["accuracy"]
    assert accuracy == read(trained, "result.json")["epochs"][-1]["validation_accuracy"] < 1
    lines = [line for line in told.stderr.splitlines() if "ringslice: error:" in line]
    assert len(lines) == 1, told.stderr
    assert f"accuracy {accuracy:.4f} on validation is below --min-accuracy 1 ({trained}/runs/mine" in lines[0]
    assert "Exit code: 1" in told.stderr


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (("--run", "other"), 2, "runs/other holds no finished checkpoint"),
        (("--run", "mine", "--split", "dev"), 2, "--split 'dev': "),
        (("--run", "mine", "--min-accuracy", "90"), 2, "--min-accuracy 90 is out of range"),
        (("--run", "mine", "--name", "none"), 2, "no slices called 'none'"),
        (("--epochs", "3"), 2, "No such option '--epochs'"),
    ],
)
def test_wrong_use(words: tuple[str, ...], status: int, line: str, trained: Path) -> None:
    before = sorted(trained.rglob("*"))
    failed(run(SCRIPT, "--data", trained, *words), status, line)
    assert sorted(trained.rglob("*")) == before


def test_a_run_that_does_not_fit_is_refused(trained: Path, tmp_path: Path) -> None:
    root = shutil.copytree(trained, tmp_path / "root")
    words = (SCRIPT, "--data", root, "--run", "mine")
    arrays = root / "runs/mine/checkpoints/step-00000015/model.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1])
    failed(run(*words), 1, f"{arrays} is damaged: it has ")
    manifest = root / "slices/default/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    failed(run(*words), 2, "was trained on other slices than")


def test_the_best_checkpoint_is_evaluated_where_that_is_asked_for(trained: Path, tmp_path: Path) -> None:
    """Of two checkpoints of which the newer one, with weights of nothing, has the lower score."""
    root = shutil.copytree(trained, tmp_path / "root")
    words = (SCRIPT, "--data", root, "--run", "mine", "--json")
    run_folder = open_place(str(root / "runs/mine"))
    kept = store.open_checkpoint(run_folder, 15)
    spoilt = {group: {name: array * 0 for name, array in kept.read(group).items()} for group in kept.groups}
    facts = {name: value for name, value in kept.marker.items() if name not in store.OWN_FACTS}
    attempts = (open_place(str(tmp_path)) / "root/attempts").make_folder()
    store.write(run_folder, attempts, 30, spoilt, facts | {"score": facts["score"] - 0.1})
    theirs = read(trained, "result.json")["result"]
    succeeded(run(*words, "--checkpoint", "best"))
    found = read(root, "evaluation-test.json")
    assert (found["checkpoint"], found["accuracy"]) == ("step-00000015", theirs["test_accuracy"])
    succeeded(run(*words))
    found = read(root, "evaluation-test.json")
    assert found["checkpoint"] == "step-00000030"
    assert found["accuracy"] < theirs["test_accuracy"]


def test_damage_is_named_or_skipped_as_asked(trained: Path, tmp_path: Path) -> None:
    root = shutil.copytree(trained, tmp_path / "root")
    flip_bit(next((root / "slices/default/test").glob("*.tfrecord")), 5000)
    words = (SCRIPT, "--data", root, "--run", "mine")
    failed(run(*words), 1, "is damaged at offset ")
    succeeded(run(*words, "--on-damage", "skip", "--slices-at-once", 1))
    found = read(root, "evaluation-test.json")
    assert (found["examples"], found["skipped"]) == (180, 1)
    assert found["accuracy"] == pytest.approx(read(trained, "result.json")["result"]["test_accuracy"], abs=0.01)

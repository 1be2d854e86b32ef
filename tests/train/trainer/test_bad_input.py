"""What cannot be trained on: one clear line over all ranks, all of them end, and nothing of the user's is changed."""

import json
import math
import shutil
from pathlib import Path

import keras
import pytest

from etl.storage.json_files import json_bytes, with_checksum
from tests.lib.commands import REPOSITORY, Finished, contents, copy_some, failed, horovodrun, run
from tests.lib.inline import ingest_here, normalize_here, shard_here
from tests.lib.ranks import tiny
from tests.lib.train_in_process import evaluate_here, train_here
from tests.train.conftest import MODEL, TrainedRun
from train.runs.hooks import Hooks, Running
from train.runs.position import Position

TRAIN = REPOSITORY / "train/main.py"
# each rank in a folder of its own, which is first of where Python looks for packages
APART = 'cd "$0/$HOROVOD_RANK" && PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec "$@"'
HERE = "/proc/self/cwd/digits"  # the same text on each rank, and a place of its own


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
def unchanged(trained: TrainedRun, tmp_path: Path) -> TrainedRun:
    """A copy of the trained run, which a test must leave as it is."""
    return trained.copy(tmp_path / "copy")


def resume(made: TrainedRun, *words: object) -> Finished:
    return train_here(*made.training, "--resume", "--epochs", 3, "--decay-until", 3, *words)


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (
            ("--batch", 41),
            2,
            "--batch 41 is more than a rank's share of 40 of the 40 training examples; give a smaller --batch, or"
            " start fewer ranks",
        ),
        (
            ("--device", "gpu"),
            3,
            "--device gpu: there is no GPU for local rank 0, TensorFlow sees none on this host; install"
            " tensorflow with its CUDA packages (make install GPU=1), look at nvidia-smi, or give --device cpu"
            " ($CUDA_VISIBLE_DEVICES is '', which hides all)",
        ),
    ],
    ids=["batch", "gpu"],
)
def test_what_no_rank_can_do(words: tuple[object, ...], status: int, line: str, root: Path) -> None:
    failed(train_here("--data", root, "--model", "mlp", *words, CUDA_VISIBLE_DEVICES=""), status, line)
    assert [path.name for path in root.iterdir()] == ["slices"]


@pytest.mark.integration
def test_ranks_with_other_slices_end_together(few: Path, tmp_path: Path) -> None:
    """Real ranks, each with slices of its own."""
    for rank in "01":
        shutil.copytree(few, tmp_path / rank / "digits/slices/few")
    manifest = tmp_path / "1/digits/slices/few/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    outcome = horovodrun(2, "sh", "-c", APART, tmp_path, "python", TRAIN, "--data", HERE, "--model", "mlp")
    assert outcome.returncode != 0
    lines = [each for each in (outcome.stdout + outcome.stderr).splitlines() if "ringslice: error:" in each]
    assert len(lines) == 1, outcome.stderr
    assert " sees other slices (" in lines[0]
    assert "Exit code: 2" in outcome.stderr, outcome.stderr
    assert ">:Traceback" not in outcome.stderr, outcome.stderr  # horovodrun has one of its own
    assert not list(tmp_path.rglob("runs"))


def other_model(shape: tuple[int, int, int], classes: int) -> keras.Model:
    return keras.Sequential([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(classes)])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--name", "few"),
            "step-00000040 was trained on 10 classes, these slices have 2 ('0' is in one of them only);",
        ),
        (
            ("--model", "mlp"),
            f"was trained with other settings: --model was {MODEL}, now mlp; give what it was trained",
        ),
        (
            (),
            "is of another model: 0000-kernel is float32 of shape (3, 3, 3, 4) there, float32 of shape (1200, 10)"
            " here;",
        ),
    ],
    ids=["classes", "settings", "model of the same name"],
)
def test_a_checkpoint_of_another_training(
    words: tuple[object, ...], line: str, unchanged: TrainedRun, few: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "few" in words:  # else a run without --name would take them, if they are the newest
        shutil.copytree(few, unchanged.root / "slices/few")
    before = contents(unchanged.root)
    if not words:
        monkeypatch.setattr(tiny, "normed", other_model)
    failed(resume(unchanged, *words), 2, line)
    assert contents(unchanged.root) == before


def test_slices_without_a_training_split(root: Path) -> None:
    manifest = root / "slices/few/manifest.json"
    content = json.loads(manifest.read_text())
    del content["splits"]["train"], content["checksum"]
    manifest.write_bytes(json_bytes(with_checksum(content)))
    line = "root/slices/few has no training examples (test 40); give ringslice shard a --split with train="
    failed(train_here("--data", root, "--model", "mlp"), 2, line)
    assert [path.name for path in root.iterdir()] == ["slices"]


def test_a_run_folder_that_cannot_be_made(root: Path) -> None:
    (root / "runs").write_text("in the way")
    failed(train_here("--data", root, "--model", "mlp", "--batch", 5), 3, f"{root / 'runs'}")


DIVERGING = ("--model", "mlp", "--batch", 5, "--lr", "1e30", "--warmup-epochs", 0, "--epochs", 10)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ((), "has diverged: the loss is nan by step "),
        # takes no step whose gradient is not finite, so its weights stay as they are
        (("--precision", "float16", "--model", "tests.lib.ranks.tiny:smooth"), "has diverged: "),
    ],
    ids=["float32", "float16"],
)
def test_a_training_that_diverges(more: tuple[object, ...], line: str, root: Path) -> None:
    outcome = train_here("--data", root, *DIVERGING, *more, "--json")
    failed(outcome, 1, line)
    assert ", at a learning rate of" in outcome.stderr
    assert outcome.stdout == ""
    assert not list((root / "runs/run-0001").glob("checkpoints/*/checkpoint.json"))
    assert not (root / "runs/run-0001/result.json").exists()


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

    def on_step(self, running: Running, position: Position) -> None:
        if position.step == 30:
            variable = running.trainer.model.trainable_variables[-1]
            variable.assign(variable.value * math.inf)


def test_weights_that_are_not_finite_are_no_checkpoint(stopped: TrainedRun, tmp_path: Path) -> None:
    made = stopped.copy(tmp_path / "root")
    options = ("--resume", "--epochs", 2, "--checkpoint-steps", 5)
    outcome = train_here(*made.training, *options, hooks=DamagedWeights())
    failed(outcome, 1, "/bias is not finite at step 30, at a learning rate of ")
    assert max(path.name for path in made.folder.glob("checkpoints/*")) == "step-00000025"


@pytest.mark.integration
def test_a_process_ends_with_one_line_and_its_status(root: Path) -> None:
    """What the tests in this process cannot see: the exit, and stderr with all that libraries write there."""
    outcome = run("python", TRAIN, "--data", root, *DIVERGING)
    failed(outcome, 1, "has diverged: the loss is nan by step ")
    assert outcome.stderr.splitlines()[-1].startswith("ringslice: error: ")

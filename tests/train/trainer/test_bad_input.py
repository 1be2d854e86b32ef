"""What cannot be trained on: one clear line over all ranks, all of them end, and nothing of the user's is changed."""

import json
import shutil
from pathlib import Path

import pytest

from etl.storage.json_files import json_bytes, with_checksum
from tests.lib.commands import (
    DIGITS_OPTIONS,
    REPOSITORY,
    Finished,
    contents,
    copy_some,
    failed,
    flip_bit,
    horovodrun,
    ringslice,
    run,
    succeeded,
)

pytestmark = pytest.mark.integration

TRAIN = REPOSITORY / "train/main.py"
MODEL = """
import keras
def net(shape, classes):
    return keras.Sequential([keras.Input(shape), keras.layers.Flatten(), {layers} keras.layers.Dense(classes)])
"""
# each rank in a folder of its own, which is first of where Python looks for packages
APART = 'cd "$0/$HOROVOD_RANK" && PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec "$@"'
HERE = "/proc/self/cwd/digits"  # the same text on each rank, and a place of its own


@pytest.fixture(scope="module")
def trained(digits: Path, digits_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mine.py, the code of a model, and a root: the run ``mine``, and slices of two classes, ``few``."""
    folder = tmp_path_factory.mktemp("bad-input")
    source = copy_some(digits, folder / "source", "17", slice(40))
    words = ("-r", "inline", *DIGITS_OPTIONS, "--workers", 2, "--split", "train=0.5,test=0.5")
    succeeded(ringslice("pipeline", source, folder / "other", *words, "--name", "few"))
    shutil.copytree(digits_root / "slices", folder / "root" / "slices")
    (folder / "mine.py").write_text(MODEL.format(layers=""))
    succeeded(train(folder, "--epochs", 1))
    shutil.copytree(folder / "other/slices/few", folder / "root/slices/few")
    return folder


def train(folder: Path, *words: object) -> Finished:
    """Train the run ``mine``."""
    known = ("--data", "root", "--name", "default", "--run", "mine", "--model", "mine:net", "--batch", 200)
    return run("python", TRAIN, *known, *words, cwd=folder)


@pytest.fixture
def unchanged(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test must leave as it is."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def kept(folder: Path) -> dict[str, bytes]:
    """The files of all runs, but for the logs of their ranks."""
    return {path: data for path, data in contents(folder / "root" / "runs").items() if "/logs/" not in path}


def failed_together(told: Finished, status: int, line: str) -> None:
    """Some rank ended with ``status``, and one of them told why in one line that holds ``line``."""
    assert told.returncode != 0
    lines = [each for each in (told.stdout + told.stderr).splitlines() if "ringslice: error:" in each]
    assert len(lines) == 1, told.stderr
    assert line in lines[0], lines[0]
    assert f"Exit code: {status}" in told.stderr, told.stderr
    assert ">:Traceback" not in told.stderr, told.stderr  # horovodrun has one of its own


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        pytest.param(
            ("--batch", 719),
            2,
            "--batch 719 is more than a rank's share of 718 of the 1437 training examples; give a"
            " smaller --batch, or start fewer ranks",
            marks=pytest.mark.chaos,
        ),
        (
            ("--device", "gpu"),
            3,
            "--device gpu: there is no GPU for local rank 0, TensorFlow sees none on this host; install",
        ),
    ],
    ids=["batch", "gpu"],
)
def test_ranks_are_refused_together(
    words: tuple[object, ...], status: int, line: str, digits_root: Path, tmp_path: Path
) -> None:
    shutil.copytree(digits_root / "slices", tmp_path / "slices")
    told = horovodrun(2, TRAIN, "--data", tmp_path, "--model", "mlp", *words, CUDA_VISIBLE_DEVICES="")
    failed_together(told, status, line)
    assert [path.name for path in tmp_path.iterdir()] == ["slices"]


def apart(folder: Path, *words: object) -> Finished:
    return horovodrun(2, "sh", "-c", APART, folder, "python", TRAIN, "--data", HERE, "--model", "mlp", *words)


@pytest.fixture
def folders(digits_root: Path, tmp_path: Path) -> Path:
    """A folder with a folder for each of two ranks, with the same slices."""
    for rank in "01":
        shutil.copytree(digits_root / "slices", tmp_path / rank / "digits" / "slices")
    return tmp_path


def test_ranks_with_other_slices(folders: Path) -> None:
    manifest = folders / "1/digits/slices/default/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    failed_together(apart(folders), 2, " sees other slices (")
    assert not list(folders.rglob("runs"))


@pytest.mark.chaos
def test_ranks_without_the_slices(folders: Path) -> None:
    shutil.rmtree(folders / "1/digits")
    failed_together(apart(folders), 2, f" sees no finished slices at {HERE}/slices/default, rank 0 those of ")
    assert not list(folders.rglob("runs"))


def test_ranks_with_other_versions(folders: Path) -> None:
    told = folders / "1" / "keras-0.1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 0.1\n")
    failed_together(apart(folders), 3, " has keras 0.1, rank 0 has ")
    assert not list(folders.rglob("runs"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--name", "few", "--batch", 1),
            "step-00000008 was trained on 10 classes, these slices have 2 ('0' is in one of them only);",
        ),
        (
            ("--model", "mlp"),
            "was trained with other settings: --model was mine:net, now mlp; give what it was trained",
        ),
    ],
    ids=["classes", "model"],
)
def test_a_checkpoint_of_another_training(words: tuple[object, ...], line: str, unchanged: Path) -> None:
    before = contents(unchanged / "root")
    failed(train(unchanged, "--resume", "--epochs", 2, *words), 2, line)
    assert contents(unchanged / "root") == before


def test_a_checkpoint_of_a_model_of_the_same_name(unchanged: Path) -> None:
    before = kept(unchanged)
    (unchanged / "mine.py").write_text(MODEL.format(layers="keras.layers.Dense(3),"))
    line = "is of another model: 0000-kernel is float32 of shape (784, 10) there, float32 of shape (784, 3) here; give"
    failed(train(unchanged, "--resume", "--epochs", 2), 2, line)
    assert kept(unchanged) == before


def test_checkpoints_that_are_all_damaged(unchanged: Path) -> None:
    [arrays] = (unchanged / "root/runs/mine").rglob("optimizer.safetensors")
    flip_bit(arrays, -1)
    before = kept(unchanged)
    line = f"{arrays} is damaged: its SHA-256 is not that of its marker; no other checkpoint of "
    failed(train(unchanged, "--resume", "--epochs", 2), 1, line)
    assert kept(unchanged) == before


def test_slices_without_a_training_split(unchanged: Path) -> None:
    manifest = unchanged / "root/slices/few/manifest.json"
    told = json.loads(manifest.read_text())
    del told["splits"]["train"]
    content = {name: value for name, value in told.items() if name != "checksum"}
    manifest.write_bytes(json_bytes(with_checksum(content)))
    before = contents(unchanged / "root")
    line = "root/slices/few has no training examples (test 40); give ringslice shard a --split with train="
    failed(train(unchanged, "--name", "few", "--run", "new"), 2, line)
    assert contents(unchanged / "root") == before


def test_a_recipe_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("bach = 8\n")
    told = run("python", TRAIN, "--data", tmp_path, "--recipe", tmp_path / "mine.toml")
    failed(told, 2, f"--recipe {tmp_path / 'mine.toml'} has no setting 'bach'; known: accumulate, augment, batch")


def test_a_run_folder_that_cannot_be_made(digits_root: Path, tmp_path: Path) -> None:
    shutil.copytree(digits_root / "slices", tmp_path / "slices")
    (tmp_path / "runs").write_text("in the way")
    failed(run("python", TRAIN, "--data", tmp_path, "--model", "mlp"), 3, f"{tmp_path / 'runs'}")


def test_a_training_that_diverges(digits_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "slices").symlink_to(digits_root / "slices")
    told = run("python", TRAIN, "--data", root, "--model", "mlp", "--lr", "1e30", "--warmup-epochs", 0, "--epochs", 1)
    failed(told, 1, "has diverged: the loss is nan by step 23, at a learning rate of")
    assert not list((root / "runs/run-0001").glob("checkpoints/*/checkpoint.json"))

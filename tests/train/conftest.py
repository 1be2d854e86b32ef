"""What tests share: of checkpoints, a run's folder and one for what is about to be published; one trained run.

TensorFlow is loaded only when a run is trained.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from etl.storage.place import Place, open_place
from tests.lib.commands import succeeded
from tests.lib.inline import ingest_here, normalize_here, shard_here

MODEL = "tests.lib.ranks.tiny:normed"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "run"))


@pytest.fixture
def staging(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "staging")).make_folder()


@pytest.fixture
def root(digits_root: Path, tmp_path: Path) -> Path:
    """A root with the slices of the digits, without runs."""
    shutil.copytree(digits_root / "slices", tmp_path / "digits/slices")
    return tmp_path / "digits"


@dataclass(frozen=True)
class TrainedRun:
    """The run ``mine`` under ``root``, whose dataset was made of the files in ``source``."""

    source: Path
    root: Path

    @property
    def words(self) -> tuple[object, ...]:
        """What names the run to the commands."""
        return "--data", self.root, "--run", "mine"

    @property
    def training(self) -> tuple[object, ...]:
        """What it was trained with, for the trainer."""
        return *self.words, "--model", MODEL, "--crop", 20, "--batch", 15, "--warmup-epochs", 0, "--lr", 1

    @property
    def folder(self) -> Path:
        return self.root / "runs/mine"

    @property
    def export(self) -> Path:
        return self.folder / "export"

    def read(self, name: str = "result.json") -> Any:
        """A JSON file of the run."""
        return json.loads((self.folder / name).read_text())

    def copy(self, folder: Path) -> "TrainedRun":
        """A copy of the root at ``folder``, for a test to change."""
        return TrainedRun(self.source, shutil.copytree(self.root, folder))


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """A run that was stopped after 25 of its 40 steps, in the second of two epochs.

    Its images are 600 digits as files of 60 to 99 pixels: every third is a PNG, the others are JPEGs, some of which lie
    on their side by EXIF. The slices are JPEGs, of which the model sees the middle. Tests share it, and change
    nothing.
    """
    folder = tmp_path_factory.mktemp("trained")
    from tests.lib.train_in_process import train_here

    made = TrainedRun(folder / "source", folder / "root")
    digits = load_digits()
    for number in range(600):
        _write_digit(made.source / str(digits.target[number]), number, digits.images[number])
    ingest_here(made.source, made.root)
    normalize_here(made.root, "--size", 24)
    shard_here(made.root, "--workers", 2, "--split", "train=0.5,validation=0.1,test=0.4")
    more = ("--epochs", 2, "--max-steps", 25, "--checkpoint-steps", 10, "--json")
    succeeded(train_here(*made.training, *more))
    return made


@pytest.fixture(scope="session")
def trained(stopped: TrainedRun, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """The same run, gone on with to the end of its second epoch. Tests share it, and change nothing."""
    from tests.lib.train_in_process import train_here

    made = stopped.copy(tmp_path_factory.mktemp("trained") / "root")
    succeeded(train_here(*made.training, "--epochs", 2, "--resume"))
    return made


@pytest.fixture(scope="session")
def exported(trained: TrainedRun, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """The same run, exported. Tests share it, and change nothing."""
    from tests.lib.train_in_process import export_here

    made = trained.copy(tmp_path_factory.mktemp("exported") / "root")
    succeeded(export_here(*made.words))
    return made


def _write_digit(folder: Path, number: int, levels: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    side = 60 + number % 40
    image = Image.fromarray(np.round(levels * 255 / 16).astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    if number % 3 == 0:
        image.save(folder / f"{number:04d}.png")
        return
    exif = Image.Exif()
    if number % 4 == 0:
        image = image.transpose(Image.Transpose.ROTATE_90)
        exif[0x0112] = 6
    image.convert("RGB").save(folder / f"{number:04d}.jpg", quality=90, exif=exif)

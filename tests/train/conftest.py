"""What tests share: of checkpoints, a run's folder and one for what is about to be published; an exported run."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from etl.storage.place import Place, open_place
from tests.lib.commands import ringslice, run, succeeded


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "run"))


@pytest.fixture
def attempts(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "attempts")).make_folder()


@dataclass(frozen=True)
class Exported:
    """A run, exported: ``source`` has the files that its dataset was made of, ``words`` name the run to commands."""

    source: Path
    root: Path

    @property
    def words(self) -> tuple[object, ...]:
        return "--data", self.root, "--run", "mine"

    @property
    def folder(self) -> Path:
        return self.root / "runs/mine/export"


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A model of 600 digits as files of 60 to 99 pixels: every third is a PNG, the others are JPEGs, some of which lie
    on their side and tell it. The slices are JPEGs, of which the model sees the middle. Tests share it, and change
    nothing.
    """
    folder = tmp_path_factory.mktemp("exported")
    source, root = folder / "source", folder / "root"
    digits = load_digits()
    for number in range(600):
        _write_digit(source / str(digits.target[number]), number, digits.images[number])
    words = ("-r", "inline", "--size", 24, "--workers", 2, "--split", "train=0.5,test=0.5")
    succeeded(ringslice("pipeline", source, root, *words))
    made = Exported(source, root)
    training = ("--model", "mlp", "--crop", 20, "--batch", 30, "--epochs", 4, "--warmup-epochs", 0, "--lr", 0.1)
    succeeded(run("train/main.py", *made.words, *training))
    succeeded(run("train/export.py", *made.words))
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

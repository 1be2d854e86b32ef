"""Peers with environments of their own, made by the Makefile, and data sets that other packages install."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lib.failure import Failure
from lib.processes import REPOSITORY

FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_FILE = "train-images-idx3-ubyte*"
PROBE = "import importlib.metadata as m, json, sys; print(json.dumps({each: m.version(each) for each in sys.argv[1:]}))"


@dataclass(frozen=True)
class PeerEnvironment:
    """A virtual environment below .venvs/ that ``make TARGET`` makes."""

    target: str
    folder: str
    packages: tuple[str, ...]

    @property
    def python(self) -> Path:
        return REPOSITORY / ".venvs" / self.folder / "bin" / "python"

    def versions(self, python: Path | None = None) -> dict[str, str]:
        """The versions of the packages in this environment, or in that of ``python``. Raises Failure."""
        own = python or self.python
        fix = f"Install it: make {self.target}"
        if not own.exists():
            raise Failure("peer", self.target, "its environment is missing", fix)
        done = subprocess.run([own, "-c", PROBE, *self.packages], capture_output=True, text=True)
        if done.returncode:
            raise Failure("peer", self.target, f"{own} does not have it", fix)
        found: dict[str, str] = json.loads(done.stdout)
        return found


IMG2DATASET = PeerEnvironment("img2dataset", "img2dataset", ("img2dataset",))
TENSORFLOW_IO = PeerEnvironment("tensorflow-io", "tfio", ("tensorflow-cpu", "tensorflow-io"))
TORCH_PEERS = PeerEnvironment(
    "torch-peers", "torch-peers", ("torch", "torchvision", "tfrecord", "pillow", "simplejpeg")
)


def check_fashion(option: str, folder: Path) -> None:
    """Raises Failure if the files of Fashion-MNIST are not in ``folder``."""
    if not any(folder.glob(FASHION_FILE)):
        fix = f"Install it: apt-get install dataset-fashion-mnist, or give {option} FOLDER"
        raise Failure(option, folder, f"it has no {FASHION_FILE}", fix)

"""What tests share: real images, a finished dataset, and ways to run the commands as a user does."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.digits import write_digits
from tests.hadoop.fixture import hadoop, hadoop_alone, hadoop_undisturbed
from tests.needs import needs_hadoop

__all__ = ["hadoop", "hadoop_alone", "hadoop_undisturbed"]  # fixtures

REPOSITORY = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
HOROVODRUN = (sys.executable, REPOSITORY / "tests" / "horovodrun.py")  # in a tenth of the time

DIGITS_OPTIONS = ("--size", "28", "--color", "gray", "--format", "png", "--pack-size", "32KB")

Finished = subprocess.CompletedProcess[str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the one cluster begins, for it takes half of the time; then what trains, for that is long, too."""
    hidden = [
        item.nodeid for item in items if "hadoop" in getattr(item, "fixturenames", ()) and not needs_hadoop(item.nodeid)
    ]
    if hidden:  # they would wait for the cluster, which another worker has
        raise pytest.UsageError(f"name these so that tests/needs.py sees that they need Hadoop: {', '.join(hidden)}")
    items.sort(key=lambda item: (not needs_hadoop(item.nodeid), "train" not in item.path.parts))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which worker runs what, where there are several: see `tests.scheduling`."""
    from tests.scheduling import ByNeed  # imports pytest-xdist, which is not always there

    return ByNeed(config, log)


def environment(**more: str) -> dict[str, str]:
    """The environment of a user who has activated the project's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RINGSLICE_")}
    return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "TF_CPP_MIN_LOG_LEVEL": "2"} | more


def run(
    *words: object,
    cwd: Path = REPOSITORY,
    timeout_s: float = 120,
    variables: Mapping[str, str] | None = None,
    **more: str,
) -> Finished:
    """Run a command to its end, with these ``variables`` in its environment; its output as text."""
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment(**{**(variables or {}), **more}),
        timeout=timeout_s,
        capture_output=True,
        text=True,
    )


def ringslice(*words: object, **variables: str) -> Finished:
    return run("ringslice", *words, variables=variables)


def horovodrun(ranks: int, *words: object, timeout_s: float = 240, **variables: str) -> Finished:
    return run(*HOROVODRUN, "-np", ranks, *words, timeout_s=timeout_s, variables=variables)


def succeeded(finished: Finished) -> Finished:
    """The same, if it exited 0; what it printed, if not."""
    assert finished.returncode == 0, (
        f"{finished.args} exited {finished.returncode}\n{finished.stdout}\n{finished.stderr}"
    )
    return finished


def failed(finished: Finished, status: int, line: str) -> None:
    """It exited with ``status``, and told why in one line that holds ``line``; no traceback."""
    errors = [each for each in finished.stderr.splitlines() if "ringslice: error:" in each]
    assert finished.returncode == status, f"{finished.returncode}: {finished.stderr}"
    assert len(errors) == 1, finished.stderr
    assert line in errors[0], errors[0]
    assert "Traceback" not in finished.stderr, finished.stderr


def contents(folder: Path, *left_out: str) -> dict[str, bytes]:
    """Every file below, by its path; without the names in ``left_out``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in left_out)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def flip_bit(path: Path, position: int) -> None:
    """The last bit of the byte at ``position``, from the end where that is negative, is another one from now on."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 1,797 digits as PNG files in a folder per class."""
    folder = tmp_path_factory.mktemp("source") / "digits"
    write_digits(folder)
    return folder


def copy_some(digits: Path, folder: Path, labels: str, images: slice) -> Path:
    """Of each of these labels some images, into a folder by class that is made or grows; returns it."""
    for label in labels:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for path in sorted((digits / label).iterdir())[images]:
            shutil.copy(path, folder / label)
    return folder


@pytest.fixture(scope="session")
def digits_root(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The digits through the whole pipeline, 8 training slices. Tests share it: they read it and add nothing."""
    root = tmp_path_factory.mktemp("roots") / "digits"
    succeeded(ringslice("pipeline", digits, root, *DIGITS_OPTIONS, "--workers", 8))
    made = sorted(root.iterdir())
    yield root
    assert sorted(root.iterdir()) == made, "a test left something in what the others read"


TreeMaker = Callable[[Mapping[str, int]], Path]


@pytest.fixture
def make_tree(tmp_path: Path) -> TreeMaker:
    """Makes a source folder of small seeded colour images, so many for each class."""

    def make(counts: Mapping[str, int]) -> Path:
        generator = np.random.default_rng(7)
        folder = tmp_path / "source"
        for name, count in counts.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (9, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{number:03d}.png")
        return folder

    return make

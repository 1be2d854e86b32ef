"""What tests share: real images, a finished dataset, and ways to run the commands as a user does."""

import gc
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from tests.lib.commands import DIGITS_OPTIONS, forget_caller, succeeded
from tests.lib.digits import write_digits
from tests.lib.in_process import ringslice_here

# Fixtures, and hooks. Pytest rewrites their assertions, so none is imported before it is named here.
pytest_plugins = ("tests.lib.tiers", "tests.lib.session", "tests.hadoop.fixture", "tests.lib.on_hadoop")

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


def pytest_configure() -> None:
    forget_caller()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control starts what runs in the background, pytest of a script, say, with SIGINT ignored.
        # The processes that tests start would inherit that, and tests of Ctrl-C would wait for them for ever.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary files of the tests and of all that they start lie among pytest's, which deletes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)  # what Python had found before
        yield


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 1,797 digits as PNG files in a folder per class."""
    folder = tmp_path_factory.mktemp("source") / "digits"
    write_digits(folder)
    return folder


@pytest.fixture(scope="session")
def digits_root(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The digits through the whole pipeline, 8 training slices. Tests share it: they read it and add nothing."""
    root = tmp_path_factory.mktemp("roots") / "digits"
    succeeded(ringslice_here("pipeline", digits, root, "-r", "inline", *DIGITS_OPTIONS, "--workers", 8))
    made = sorted(root.iterdir())
    yield root
    assert sorted(root.iterdir()) == made, "a test left something in what the others read"


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage collection in tests of deeply nested JSON.

    At the depth where the parser gives up, nothing is left for what a collection calls, such as Hypothesis' callback:
    its RecursionError would fail the test, in some orders of tests only.
    """
    gc.disable()
    yield
    gc.enable()


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

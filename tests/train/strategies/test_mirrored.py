"""One process with several copies of the model: its steps, its share of the slices, and changes of the strategy."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.lib.commands import failed, horovodrun, run, succeeded
from tests.lib.ranks.audits import require_each_key_once

pytestmark = pytest.mark.integration

STEPS = "tests/lib/ranks/mirrored_steps.py"
MIRRORED = ("--strategy", "mirrored", "--replicas", 2)


@pytest.fixture
def root(digits_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(digits_root / "slices", tmp_path / "digits/slices")
    return tmp_path / "digits"


def weights_of(root: Path, name: str, words: tuple[object, ...], *options: object) -> np.ndarray:
    """All weights of a run after its steps."""
    succeeded(run("python", *words, "--data", root, "--run", name, *options))
    last = max((root / "runs" / name / "checkpoints").iterdir())
    arrays = load_file(last / "model.safetensors")
    return np.concatenate([arrays[each].ravel() for each in sorted(arrays)])


@pytest.mark.witness
def test_two_copies_take_the_steps_of_one_fed_their_batches(root: Path) -> None:
    """With batch norm over all copies, clipping, and a last step of an epoch that is not full."""
    options = ("--model", "tests.lib.ranks.tiny:smooth_normed", "--batch-norm", "synchronised", "--clip-norm", 1)
    steps = ("--warmup-epochs", 0, "--lr", 0.1, "--max-steps", 15)
    alone = weights_of(root, "alone", ("train/main.py",), *options, *steps, "--batch", 128)
    both = weights_of(root, "both", (STEPS, "whole"), *options, *steps, "--batch", 64, *MIRRORED)
    wrong = weights_of(root, "wrong", (STEPS, "reduction"), *options, *steps, "--batch", 64, *MIRRORED)
    distances = [np.linalg.norm(each - alone) / np.linalg.norm(alone) for each in (both, wrong)]
    assert distances[0] < 1e-4 < 1e-2 < distances[1]


def test_a_run_goes_on_with_another_strategy(root: Path) -> None:
    options = ("--data", root, "--run", "one", "--model", "tests.lib.ranks.tiny:tiny", "--epochs", 2, "--batch", 36)
    words = ("train/main.py", *options, "--audit", "--resume", "auto")
    succeeded(horovodrun(2, *words, "--max-steps", 9))
    told = succeeded(run("python", *words, *MIRRORED, "--max-steps", 25)).stderr
    assert "on 1 rank: 11 steps of --batch 36 on each of 2 replicas, from step 9 on" in told
    succeeded(run("python", *words))
    require_each_key_once(root / "runs/one", root / "slices/default", 2)


def test_what_it_does_not_support_is_refused(root: Path) -> None:
    words = ("python", "train/main.py", "--data", root)
    failed(
        run(*words, *MIRRORED, "--compression", "fp16"), 2, "--compression fp16 is not supported by --strategy mirrored"
    )
    failed(run(*words, "--replicas", 2), 2, "--replicas 2 is for --strategy mirrored")
    told = horovodrun(2, "train/main.py", "--data", root, *MIRRORED)
    assert told.returncode != 0
    assert told.stderr.count("for all devices of a host; start it without horovodrun") == 1

"""n ranks take the steps of one rank with n times the batch, whatever the recipe; their twins do not."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.lib.commands import horovodrun, run, succeeded

SCRIPT = "tests/lib/ranks/same_steps.py"
Weights = list[npt.NDArray[np.float32]]

EXACT = ("plain", "accumulated", "synchronised")
# half precision: the largest difference of a kernel, as a part of its norm; the twins' are 0.5 and more
LOOSE = {"compressed": 0.01, "bfloat16": 0.1}
RARE = ("lars", "float16")


@pytest.fixture
def root(digits_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(digits_root / "slices", tmp_path / "root" / "slices")
    return tmp_path / "root"


def weights(path: Path) -> Weights:
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def require_same_on_all_ranks(out: Path, task: str, ranks: int) -> Weights:
    all_weights = [weights(out / f"{task}-{ranks}-{rank}.npz") for rank in range(ranks)]
    for rank, own in enumerate(all_weights):
        for one, other in zip(all_weights[0], own, strict=True):
            assert np.array_equal(one, other), f"rank {rank} differs"
    return all_weights[0]


def require_close(one: Weights, other: Weights) -> None:
    """To the rounding of float32, which near a ReLU's kink decides on a whole gradient; the twins differ by 0.02."""
    for first, second in zip(one, other, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def require_near(one: Weights, other: Weights, most: float) -> None:
    for first, second in zip(one, other, strict=True):
        if first.ndim > 1:
            assert np.linalg.norm(first - second) / np.linalg.norm(second) < most, "not near"


def require_equivalent(out: Path, case: str, ranks: int = 2, task: str = "ring") -> None:
    theirs = weights(out / f"{'plain' if case == 'compressed' else case}-one-of-{ranks}-1-0.npz")
    ours = require_same_on_all_ranks(out, f"{case}-{task}", ranks)
    if case in (*EXACT, "lars"):
        require_close(ours, theirs)
    else:
        require_near(ours, theirs, LOOSE.get(case, 0.4))


@pytest.mark.integration
def test_two_ranks_take_the_steps_of_one_fed_their_batches(root: Path, tmp_path: Path) -> None:
    """For 52 steps, and across a checkpoint after 25 and a resume."""
    cases = (*EXACT, *LOOSE)
    succeeded(run("python", SCRIPT, root, tmp_path, *(f"{case}-one-of-2" for case in cases if case != "compressed")))
    more = ["plain-identity", "plain-stopped", "plain-resumed", "synchronised-local"]
    succeeded(horovodrun(2, SCRIPT, root, tmp_path, *(f"{case}-ring" for case in cases), *more))
    for case in cases:
        require_equivalent(tmp_path, case)
    require_equivalent(tmp_path, "plain", task="resumed")
    # the twins: without the all-reduce the very same checks fail
    with pytest.raises(AssertionError, match="rank 1 differs"):
        require_equivalent(tmp_path, "plain", task="identity")
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        require_close(weights(tmp_path / "plain-identity-2-0.npz"), weights(tmp_path / "plain-one-of-2-1-0.npz"))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):  # gradients are reduced, statistics are not
        require_equivalent(tmp_path, "synchronised", task="local")


@pytest.mark.chaos
def test_no_recipe_is_without_a_twin(root: Path, tmp_path: Path) -> None:
    cases = (*EXACT, *LOOSE, *RARE)
    succeeded(run("python", SCRIPT, root, tmp_path, *(f"{case}-one-of-2" for case in cases if case != "compressed")))
    tasks = [f"{case}-{task}" for case, task in itertools.product(cases, ("ring", "identity"))]
    succeeded(horovodrun(2, SCRIPT, root, tmp_path, *tasks, timeout_s=600))
    for case in cases:
        require_equivalent(tmp_path, case)
        with pytest.raises(AssertionError, match="rank 1 differs"):
            require_equivalent(tmp_path, case, task="identity")


@pytest.mark.chaos
def test_four_ranks_too(root: Path, tmp_path: Path) -> None:
    succeeded(run("python", SCRIPT, root, tmp_path, *(f"{case}-one-of-4" for case in EXACT)))
    succeeded(horovodrun(4, SCRIPT, root, tmp_path, *(f"{case}-ring" for case in EXACT)))
    for case in EXACT:
        require_equivalent(tmp_path, case, ranks=4)

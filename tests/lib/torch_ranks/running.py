"""PyTorch's environment, and runs in it. Imports no PyTorch."""

import os

import pytest

from tests.lib.commands import REPOSITORY, Finished, run

BIN = REPOSITORY / ".venvs/torch/bin"

_missing: list[str] = []


def require_torch() -> None:
    """Fail the first test that needs PyTorch where it is not installed, and skip the others."""
    if not (BIN / "torchrun").exists():
        if _missing:
            pytest.skip(_missing[0])
        _missing.append(f"{BIN.parent} is missing; run: make torch")
        pytest.fail(_missing[0])


def in_torch(*words: object, **variables: str) -> Finished:
    """Run a command by the Python that has PyTorch; see `require_torch`."""
    require_torch()
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return run(*words, variables=variables, PYTHONPATH=str(REPOSITORY), PATH=path)


def torchrun(ranks: int, *words: object, **variables: str) -> Finished:
    """Run a program of ranks. Without the ``--``, torchrun takes --run for one of its own options."""
    launcher = ("torchrun", "--standalone", "--nproc-per-node", ranks, "--")
    return in_torch(*launcher, *words, OMP_NUM_THREADS="1", **variables)

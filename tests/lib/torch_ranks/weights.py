"""Weights and states of the optimizer that runs have left."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def last_checkpoint(root: Path, name: str) -> Path:
    return max((root / "runs" / name / "checkpoints").iterdir())


def distance(root: Path, reference: str, other: str, part: str = "") -> float:
    """The distance of the other run's last weights from those of the reference, as a part of these.

    With ``part``, of those weights, and states of the optimizer, whose name contains it.
    """
    expected, found = (
        load_file(last_checkpoint(root, run) / "model.safetensors")
        | load_file(last_checkpoint(root, run) / "optimizer.safetensors")
        for run in (reference, other)
    )
    names = [name for name in expected if part in name]
    squares = [float(np.square(found[name] - expected[name]).sum()) for name in names]
    return float(np.sqrt(sum(squares) / sum(float(np.square(expected[name]).sum()) for name in names)))

"""What runs of ranks leave: the keys that all consumed, checkpoints and weights."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file


def keys_of_split(folder: Path, split: str = "train") -> list[str]:
    """The keys of a split of the slices in ``folder``, sorted."""
    rows = pq.read_table(folder / "examples.parquet", columns=["key", "split"]).to_pylist()
    return sorted(row["key"] for row in rows if row["split"] == split)


def committed_keys(run: Path, epoch: int) -> list[str]:
    """The keys that all ranks consumed in an epoch, by the run's committed history, sorted."""
    files = sorted((run / "audit").glob(f"epoch-{epoch:04d}-*.txt"))
    return sorted(key for path in files for key in path.read_text().splitlines())


def require_each_key_once(run: Path, slices: Path, epochs: int) -> None:
    """Every epoch of ``run`` consumed every training example of ``slices`` exactly once."""
    expected = keys_of_split(slices)
    for epoch in range(1, epochs + 1):
        found = committed_keys(run, epoch)
        twice = [key for key, times in Counter(found).items() if times > 1]
        assert not twice, f"epoch {epoch}: {len(twice)} keys more than once, as {twice[0]}"
        assert found == expected, f"epoch {epoch}: {len(expected) - len(found)} keys are missing"


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

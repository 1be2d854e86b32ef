"""The audit of a run against the manifest: the committed history of each epoch, each key once."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq


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

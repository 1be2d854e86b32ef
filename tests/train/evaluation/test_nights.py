"""Nights on one root, by the commands of both DAGs: what they leave does not grow."""

import json
from pathlib import Path

import pytest

from etl.slices.prune import prune
from etl.slices.prune_runs import KeptRuns
from etl.storage.place import open_place
from tests.lib.commands import succeeded
from tests.lib.inline import ingest_here, normalize_here, shard_here
from tests.lib.nights import some_png
from tests.lib.train_in_process import promote_here, train_here
from tests.train.conftest import MODEL

NIGHTS, KEPT = 6, 2
IMAGES, NEW = 96, 48  # of each night so many are new, and as many of the oldest are gone


def bytes_below(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@pytest.mark.integration
def test_nights_leave_what_prune_keeps(tmp_path: Path) -> None:
    """The first night's model stays the champion. From the fifth night on, as much is removed as is added."""
    source, root, used = tmp_path / "source", tmp_path / "root", []
    for night in range(1, NIGHTS + 1):
        first = (night - 1) * NEW
        for number in range(first, first + IMAGES):
            path = source / str(number % 3) / f"{number:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(some_png(number))
        for number in range(first):
            (source / str(number % 3) / f"{number:05d}.png").unlink(missing_ok=True)
        ingest_here(source, root, pack_size="16KB", max_removed="1")
        normalize_here(root, "--size", 8)
        shard_here(root, "--workers", 2, "--slices", 4, "--name", f"night-{night}", "--splits-from", "newest")
        found = prune(open_place(str(root)), KEPT, runs=KeptRuns(KEPT, "airflow-")).to_json()
        used.append(bytes_below(root))
        run = f"airflow-{night}"
        words = ("--data", root, "--name", f"night-{night}")
        succeeded(train_here(*words, "--run", run, "--model", MODEL, "--crop", 6, "--batch", 16, "--max-steps", 4))
        promoted = json.loads(succeeded(promote_here(*words, run, "--max-p", 0, "--json")).stdout)
        assert promoted["champion"] == "airflow-1"
    kept = {f"airflow-{NIGHTS - 2}", f"airflow-{NIGHTS - 1}"}
    assert set(found["kept_runs"]) == {*kept, "airflow-1"}
    assert {each.name for each in (root / "runs").iterdir()} == {*kept, "airflow-1", f"airflow-{NIGHTS}"}
    assert {each.name for each in (root / "slices").iterdir()} == {
        "night-1",
        *(f"night-{NIGHTS - each}" for each in range(3)),
    }
    assert used[-1] < 1.02 * used[-2]

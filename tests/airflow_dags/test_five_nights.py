"""Nights by both DAGs: what prune keeps, disk use that stays flat, and which models become the champion."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from etl.stages.champion import read_champions
from etl.storage.place import open_place
from tests.airflow_dags.real_airflow import Airflow, DagRun
from tests.lib.commands import copy_some

MEASURED = 3  # from this night on, as much is removed as is added
KEPT = {"keep": 2, "keep_runs": 1}
FIRST, NEW = 20, 2  # images of each digit on the first night, and more on each later one
FAIR = {"model": "mlp", "epochs": 1}
WORSE = {**FAIR, "lr": 1e-6}
BETTER = {"model": "mlp", "epochs": 10}
CANDIDATES: tuple[dict[str, Any], ...] = (FAIR, WORSE, WORSE, WORSE, BETTER)  # of each night
OPTIONS = '[ingest]\npack-size = "32KB"\n[shard]\nsplit = "train=0.7,test=0.3"\n'


def bytes_by_folder(root: Path) -> Counter[str]:
    """Bytes below each folder of ``root``, of packs and parts apart, and of the files beside them."""
    used = Counter[str]()
    for path in root.rglob("*"):
        if path.is_file():
            folder, *more = path.relative_to(root).parts
            is_image = more and more[0] in ("packs", "parts")
            used[f"{folder}/{more[0]}" if is_image else folder if more else "reports"] += path.stat().st_size
    return used


def succeeded(run: DagRun) -> DagRun:
    assert run.status == 0, run.log[-5000:]
    return run


@pytest.mark.chaos
def test_five_nights(digits: Path, tmp_path: Path) -> None:
    airflow = Airflow(tmp_path / "home")
    airflow.make()
    source, root, config = tmp_path / "source", tmp_path / "root", tmp_path / "options.toml"
    config.write_text(OPTIONS)
    own = {"source": str(source), "root": str(root), "size": "8", "config": str(config), "slices": 2, "workers": 1}
    runs: list[str] = []
    used: list[Counter[str]] = []
    for night, candidate in enumerate(CANDIDATES, 1):
        there = FIRST + NEW * (night - 1)
        copy_some(digits, source, "0123456789", slice(0 if night == 1 else there - NEW, there))
        made = succeeded(airflow.dags_test("image_dataset", {**own, **KEPT, "name": f"night-{night}"}))
        used.append(bytes_by_folder(root))
        assert made.xcoms["ingest"]["images"] == 10 * there
        assert {each.name for each in (root / "runs").glob("*")} == {*runs[:1], *runs[-1:]}
        newest = {f"night-{each}" for each in (1, night - 1, night) if each}
        assert {each.name for each in (root / "slices").iterdir()} == newest

        params: dict[str, Any] = {"root": str(root), "ranks": 1, "candidates": [candidate], "max_class_drop": 1}
        params["name"] = f"night-{night}"  # as a run that an event started has it
        promoted = succeeded(airflow.dags_test("image_model", params)).xcoms["promote"]
        runs.append(promoted["run"])
        assert promoted["promoted"] == (candidate != WORSE), promoted
    promoted_runs = [run for run, candidate in zip(runs, CANDIDATES, strict=True) if candidate != WORSE]
    assert [each["run"] for each in read_champions(open_place(str(root)))] == promoted_runs[::-1]
    for after in used[MEASURED:]:
        images = sum(after[name] - used[MEASURED - 1][name] for name in ("raw/packs", "normalized/parts"))
        assert after.total() - used[MEASURED - 1].total() <= 2 * images

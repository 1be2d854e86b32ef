"""The DAGs under a real scheduler on PostgreSQL: an event starts the model's DAG, and a killed task leaves nothing."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.storage.place import open_place
from tests.airflow_dags.real_airflow import DAGS, Airflow, processes_of
from tests.airflow_dags.real_scheduler import Scheduler, running_scheduler
from tests.hadoop.processes import Process
from tests.lib.ranks.running import wait_until
from tests.lib.run_folder import fail_in_one_line

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    airflow = Airflow(folder / "home")
    with fail_in_one_line(), running_scheduler(airflow, folder) as scheduler:
        for dag in DAGS:
            scheduler.unpause(dag)
        yield scheduler


def test_an_event_of_the_dataset_starts_the_model(scheduler: Scheduler, digits: Path, tmp_path: Path) -> None:
    """Unpausing starts nothing; the model's params have their defaults, but for the event's root and slices."""
    assert scheduler.runs("image_dataset") == scheduler.runs("image_model") == {}
    root = open_place(str(tmp_path / "root"))
    scheduler.trigger("image_dataset", {"source": str(digits), "root": str(root), "size": "8"}, "first-night")
    assert scheduler.wait_for_end("image_dataset") == "success", scheduler.tasks("image_dataset", "first-night")
    report = "/ringslice/report/image_dataset/first-night"
    status, text, policy = scheduler.page(report)
    assert (status, text) == (200, next(Path(str(root)).glob("*-report.html")).read_text())
    assert policy.startswith("sandbox; default-src 'none';")
    assert scheduler.page(report, has_login=False)[0] == 401
    assert scheduler.page(f"{report}-2")[0] == 404
    assert scheduler.wait_for_end("image_model") == "success", scheduler.runs("image_model")
    ((run, _),) = scheduler.runs("image_model").items()
    assert {state for state, _ in scheduler.tasks("image_model", run).values()} == {"success"}
    champion = (root / "models/champion.json").read_json()["champion"]
    assert champion["run"].startswith("airflow-asset_triggered__")
    assert champion["evaluated_slices"] == champion["slices"]
    assert (root / f"runs/{champion['run']}/export/export.json").exists()


def parent_of(process: Process) -> int:
    return int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_task_leaves_no_process(scheduler: Scheduler, digits_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(digits_root / "slices", root / "slices")
    params = {"root": str(root), "run": "long", "candidates": [{"model": "mlp", "epochs": 5000}]}
    scheduler.trigger("image_model", params, "killed")
    wait_until(lambda: list(root.glob("runs/long/checkpoints/*/checkpoint.json")), scheduler.processes["scheduler"])
    first = min(processes_of(root), key=lambda each: each.started)
    os.kill(parent_of(first), signal.SIGKILL)  # the task's own process
    wait_until(lambda: not processes_of(root))
    wait_until(lambda: scheduler.tasks("image_model", "killed")["train 0"] == ("up_for_retry", 1))

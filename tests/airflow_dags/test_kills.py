"""A task, its command or a service of Airflow is killed: no process is left, and the result is the undisturbed one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.storage.place import open_place
from tests.airflow_dags.conftest import Dataset
from tests.airflow_dags.real_airflow import DAGS, Airflow
from tests.airflow_dags.real_scheduler import Scheduler, running_scheduler
from tests.airflow_dags.victims import (
    EPOCHS,
    QUICK,
    QUICK_DAGS,
    Kills,
    kill_each,
    kill_in_training,
    processes_of_run,
    train,
)
from tests.lib.commands import wait_until
from tests.lib.ranks.outcomes import require_each_key_once
from tests.lib.run_folder import fail_in_one_line
from train.checkpoints import store

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    more = QUICK | {"RINGSLICE_AUDIT": "1"}
    with fail_in_one_line(), running_scheduler(Airflow(folder / "home"), folder, QUICK_DAGS, more) as scheduler:
        for dag in DAGS:
            scheduler.pause(dag, False)
        yield scheduler


@pytest.mark.parametrize(
    "kills",
    [
        (("normalize", "runner"), ("normalize", "command"), ("shard", "supervisor")),
        pytest.param((("normalize", "supervisor"), ("shard", "command"), ("shard", "runner")), marks=pytest.mark.chaos),
    ],
    ids=lambda kills: ", ".join(map(" ".join, kills)),
)
def test_kills_in_the_dataset(
    kills: Kills, scheduler: Scheduler, undisturbed: Dataset, run: str, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    scheduler.pause("image_model")
    scheduler.trigger("image_dataset", undisturbed.params(root), run)
    signs = {
        "normalize": lambda: list(root.glob("normalized/parts/*.parquet")),
        "shard": lambda: list(root.glob("slices/default/_work/slices/*.parquet")),
    }
    kill_each(scheduler, "image_dataset", run, kills, is_at_work=signs)
    assert undisturbed.is_equal(open_place(str(root)))


@pytest.fixture
def sliced(undisturbed: Dataset, tmp_path: Path) -> Path:
    shutil.copytree(undisturbed.root, tmp_path / "root")  # export also reads how images were normalized
    return tmp_path / "root"


def test_kills_in_training(scheduler: Scheduler, sliced: Path, run: str) -> None:
    for name in kill_in_training(scheduler, open_place(str(sliced)), run):
        require_each_key_once(sliced / f"runs/{name}", sliced / "slices/default", EPOCHS)


def test_a_training_that_is_marked_as_failed(scheduler: Scheduler, sliced: Path, run: str) -> None:
    root = open_place(str(sliced))
    train(scheduler, root, run, epochs=5000)
    wait_until(lambda: store.steps(root / "runs/run"), scheduler.processes["scheduler"])
    scheduler.api("PATCH", f"/dags/image_model/dagRuns/{run}/taskInstances/train/0", {"new_state": "failed"})
    wait_until(lambda: not processes_of_run(run))
    assert scheduler.wait_for_end("image_model", run) == "failed"
    assert scheduler.tasks("image_model", run)["train 0"] == ("failed", 1)


def test_services_that_are_killed_in_training(scheduler: Scheduler, sliced: Path, run: str) -> None:
    """Each is started again; PostgreSQL ends in order."""
    epochs = 40
    train(scheduler, open_place(str(sliced)), run, epochs=epochs)
    for service in ("triggerer", "dag-processor", "api-server", "postgres", "scheduler"):
        wait_until(lambda: processes_of_run(run), scheduler.processes["scheduler"])
        scheduler.restart(service)
    assert scheduler.wait_for_end("image_model", run) == "success", scheduler.tasks("image_model", run)
    require_each_key_once(sliced / "runs/run", sliced / "slices/default", epochs)

"""The DAGs under a real scheduler on PostgreSQL: an event starts the model's DAG; what users can send through REST; and
a training task, its command or a service of Airflow is killed: no process is left, and the run goes on.

test_kills_on_hadoop.py has the tasks of the dataset.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from etl.storage.place import open_place
from tests.airflow_dags.real_airflow import DAGS
from tests.airflow_dags.real_scheduler import Scheduler, run_scheduler
from tests.airflow_dags.victims import EPOCHS, kill_in_training, processes_of_run, train
from tests.lib.commands import copy_some, wait_until
from tests.lib.ranks.outcomes import require_each_key_once
from tests.lib.set_up import fail_in_one_line
from train.checkpoints import store

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    with fail_in_one_line(), run_scheduler(folder) as scheduler:
        for dag in DAGS:
            scheduler.pause(dag, False)
        yield scheduler


def test_an_event_of_the_dataset_starts_the_model(scheduler: Scheduler, digits: Path, tmp_path: Path) -> None:
    """Unpausing starts nothing; the model's params have their defaults, but for the event's root and slices."""
    assert scheduler.runs("image_dataset") == scheduler.runs("image_model") == {}
    source, root = copy_some(digits, tmp_path / "source", "012", slice(40)), open_place(str(tmp_path / "root"))
    scheduler.trigger("image_dataset", {"source": str(source), "root": str(root), "size": "8"}, "first-night")
    assert scheduler.wait_for_end("image_dataset") == "success", scheduler.tasks("image_dataset", "first-night")
    report = "/ringslice/report/image_dataset/first-night"
    status, text, policy = scheduler.page(report)
    assert (status, text) == (200, next(Path(str(root)).glob("*-report.html")).read_text())
    assert policy.startswith("sandbox; default-src 'none';")
    assert scheduler.page(report, has_login=False)[0] == 401
    status, text, same = scheduler.page(f"{report}-2")
    assert (status, same) == (404, policy)
    assert "No report can be read here (none was written)" in text
    assert scheduler.wait_for_end("image_model") == "success", scheduler.runs("image_model")
    ((run, _),) = scheduler.runs("image_model").items()
    assert {state for state, _ in scheduler.tasks("image_model", run).values()} == {"success"}
    champion = (root / "models/champion.json").read_json()["champion"]
    assert champion["run"].startswith("airflow-asset_triggered__")
    assert champion["evaluated_slices"] == champion["slices"]
    assert (root / f"runs/{champion['run']}/export/export.json").exists()


LONG = "x" * (1 << 20)
REFUSED: dict[str, dict[str, list[Any]]] = {
    "image_dataset": {
        "root": ["", "a\nb", "a\n", "\0", LONG],
        "name": ["../x", "a/b", "-m", ".x", "", "x" * 201],
        "size": ["28; touch pwned", "28\n", "-1"],
        "workers": ["2", 0, 1.5, None],
        "runner": ["elsewhere"],
        "config": [LONG, 1, ["a"]],
    },
    "image_model": {
        "run": ["-m", "a/b"],
        "min_accuracy": [95],
        "candidates": [
            *([], "mlp", [{}] * 101, [{"data": "/"}], [{"run": "x"}], [{"m x": 1}], [{"model": "a\n"}]),
            *([{"help": True}], [{"model": LONG}], [{LONG: 1}]),
            [{"x" * number: 1 for number in range(1, 51)} | {"y": 1}],
        ],
    },
}


def test_hostile_params_are_refused(scheduler: Scheduler) -> None:
    """What the trigger form sends is what the REST API takes; test_dags.py has those that are taken."""
    for dag, params in REFUSED.items():
        for name, value in ((name, value) for name, values in params.items() for value in values):
            with pytest.raises(HTTPError) as refused:
                scheduler.trigger(dag, {name: value}, "refused")
            answer = refused.value.read().decode()
            assert refused.value.code == 400 and name in answer, (name, str(value)[:80], answer[:300])


@pytest.fixture
def sliced(digits_root: Path, tmp_path: Path) -> Path:
    return shutil.copytree(digits_root, tmp_path / "root")  # export also reads how images were normalized


@pytest.mark.chaos
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


@pytest.mark.chaos
def test_services_that_are_killed_in_training(scheduler: Scheduler, sliced: Path, run: str) -> None:
    """Each is started again; PostgreSQL ends in order."""
    epochs = 40
    train(scheduler, open_place(str(sliced)), run, epochs=epochs)
    for service in ("triggerer", "dag-processor", "api-server", "postgres", "scheduler"):
        wait_until(lambda: processes_of_run(run), scheduler.processes["scheduler"])
        scheduler.restart(service)
    assert scheduler.wait_for_end("image_model", run) == "success", scheduler.tasks("image_model", run)
    require_each_key_once(sliced / "runs/run", sliced / "slices/default", epochs)

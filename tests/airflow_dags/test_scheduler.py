"""The DAGs under a real scheduler on PostgreSQL: an event starts the model's DAG; what users can send through REST."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etl.storage.place import open_place
from tests.airflow_dags.real_airflow import DAGS, Airflow
from tests.airflow_dags.real_scheduler import Scheduler, running_scheduler
from tests.lib.commands import REPOSITORY
from tests.lib.run_folder import fail_in_one_line

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    folder = tmp_path_factory.mktemp("scheduler")
    airflow = Airflow(folder / "home")
    with fail_in_one_line(), running_scheduler(airflow, folder) as scheduler:
        for dag in DAGS:
            scheduler.pause(dag, False)
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


HOSTILE = """$(touch pwned)`touch pwned` 'a' "b" \\ ; {{ 1 + 1 }} {% raw %} --help -m * é漢🙂"""
LONG = "x" * (1 << 20)
REFUSED: dict[str, dict[str, list[Any]]] = {
    "image_dataset": {
        "root": ["", "a\nb", "a\n", "\0", LONG],
        "name": ["../x", "a/b", "-m", ".x", ""],
        "size": ["28; touch pwned", "28\n", "-1"],
        "workers": ["2", 0, 1.5, None],
        "runner": ["elsewhere"],
        "config": [LONG, 1, ["a"]],
    },
    "image_model": {
        "run": ["-m", "a/b"],
        "candidates": [[], "mlp", [{}] * 101, [{"data": "/"}], [{"run": "x"}], [{"m x": 1}], [{"model": "a\n"}]],
    },
}


def test_hostile_params_are_refused_or_stay_one_word(scheduler: Scheduler, tmp_path: Path) -> None:
    """What the trigger form sends is what the REST API takes."""
    for dag, params in REFUSED.items():
        for name, value in ((name, value) for name, values in params.items() for value in values):
            answer = scheduler.refusal(dag, {name: value}, "refused")
            assert answer.startswith("400 "), (name, str(value)[:80], answer[:300])
            assert name in answer
    root = f"{tmp_path}/{HOSTILE}"
    scheduler.trigger("image_dataset", {"source": HOSTILE, "root": root, "config": HOSTILE}, "hostile-dataset")
    scheduler.trigger(
        "image_model", {"root": root, "run": HOSTILE, "candidates": [{"model": HOSTILE}]}, "hostile-model"
    )
    assert scheduler.wait_for_end("image_dataset", "hostile-dataset") == "failed"
    assert scheduler.words("image_dataset", "hostile-dataset", "ingest") == [f"--config={HOSTILE}", "", HOSTILE, root]
    assert scheduler.wait_for_end("image_model", "hostile-model") == "failed"
    words = ["--ranks=2", f"--data={root}", "", f"--run={HOSTILE}", "--resume", f"--model={HOSTILE}"]
    assert scheduler.words("image_model", "hostile-model", "train/0") == words
    for dag, task in (("dataset", "ingest"), ("model", "train 0")):
        assert scheduler.tasks(f"image_{dag}", f"hostile-{dag}")[task] == ("failed", 1)
    assert not [*tmp_path.rglob("pwned*"), *REPOSITORY.glob("pwned*")]


def test_undeclared_params_fail_the_first_task(scheduler: Scheduler) -> None:
    scheduler.trigger("image_dataset", {"siez": LONG}, "undeclared")
    assert scheduler.wait_for_end("image_dataset", "undeclared") == "failed"
    assert scheduler.tasks("image_dataset", "undeclared")["ingest"] == ("failed", 1)

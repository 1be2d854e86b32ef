"""The DAG in a real Airflow: it parses, runs the whole job, and fails, stops and quotes as it says."""

import json
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from etl.storage.place import open_place
from tests.airflow_dags.real_airflow import Airflow
from tests.hadoop.cluster import Cluster
from tests.hadoop.processes import Process, find_all
from tests.lib.commands import copy_some, ringslice, succeeded
from tests.lib.ranks.running import wait_until
from tests.lib.run_folder import fail_in_one_line
from tests.lib.set_up_failures import AIRFLOW, fail_once

TASKS = ["ingest", "normalize", "shard", "verify", "train", "evaluate", "prune"]
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    made = Airflow(tmp_path_factory.mktemp("airflow") / "home")
    with fail_in_one_line(), fail_once(AIRFLOW):
        made.make()
    return made


@pytest.fixture(scope="session")
def few_digits(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight of each of three digits."""
    return copy_some(digits, tmp_path_factory.mktemp("source") / "few", "012", slice(8))


def last_json(text: str) -> dict[str, Any]:
    return json.loads(text.splitlines()[-1])


@pytest.mark.witness
@pytest.mark.integration
def test_it_parses(airflow: Airflow) -> None:
    found = last_json(succeeded(airflow.run("python", HERE / "describe.py", airflow.home / "dags")).stdout)
    assert found["import_errors"] == {}
    assert list(found["tasks"]) == TASKS
    assert found["tasks"] == {task: TASKS[number + 1 : number + 2] for number, task in enumerate(TASKS)}
    assert (found["retries"], found["catchup"], found["paused"], found["max_active_runs"]) == ([2], False, True, 1)
    assert found["documented"]
    assert all(description and schema["type"] for description, schema in found["params"].values())


@pytest.mark.integration
@pytest.mark.parametrize(
    "runner", [pytest.param("local", marks=pytest.mark.witness), pytest.param("hadoop", marks=pytest.mark.hadoop)]
)
def test_the_whole_job(
    runner: str, airflow: Airflow, few_digits: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """On local files, and on a real cluster: HDFS holds the data, YARN runs the jobs."""
    root, variables = open_place(str(tmp_path / "root")), dict[str, str]()
    if runner == "hadoop":
        cluster: Cluster = request.getfixturevalue("hadoop_undisturbed")
        variables = cluster.environment()
        for name, value in variables.items():
            request.getfixturevalue("monkeypatch").setenv(name, value)
        root = open_place(f"{cluster.uri}/tests/nightly")
    params = {
        "source": str(few_digits),
        "root": str(root),
        "size": "8",
        "workers": 2,
        "slices": 2,
        "runner": runner,
        "run": "first",
        "model": "mlp",
        "epochs": 2,
        "batch": 4,
        "min_accuracy": 0,
    }
    done = airflow.dags_test(params, variables)
    assert done.finished.returncode == 0, done.log
    assert done.states == dict.fromkeys(TASKS, "success")
    assert set(done.tries.values()) == {1}
    assert [done.xcoms[task]["stage"] for task in TASKS] == TASKS
    assert done.xcoms["shard"]["examples"] == 24
    assert done.xcoms["train"]["ranks"] == 2
    result = (root / "runs/first/result.json").read_json()
    evaluation = (root / "runs/first/evaluation-test.json").read_json()
    assert (root / "normalized/run.json").read_json()["runner"] == runner
    assert len(result["epochs"]) == 2
    assert evaluation["accuracy"] == result["result"]["test_accuracy"]
    assert evaluation["accuracy"] == pytest.approx(done.xcoms["evaluate"]["accuracy"], abs=1e-4)


@pytest.mark.chaos
def test_wrong_use_is_not_tried_again(airflow: Airflow, tmp_path: Path) -> None:
    done = airflow.dags_test({"source": "no such folder; touch pwned", "root": str(tmp_path / "root")})
    assert done.finished.returncode != 0
    assert done.states == {"ingest": "failed"} | dict.fromkeys(TASKS[1:], "upstream_failed")
    assert done.tries["ingest"] == 1
    assert "no such folder; touch pwned: no such folder" in done.log
    assert "AirflowFailException: ingest exited 2, wrong use: not tried again" in done.log
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_a_param_of_another_type_is_refused(airflow: Airflow) -> None:
    refused = airflow.dags_test({"workers": "two"}).finished
    assert refused.returncode != 0
    assert "Invalid input for param workers: 'two' is not of type 'integer'" in refused.stderr + refused.stdout


FAKE = """#!{python} -S
import json, os, sys
name, status = os.path.basename(sys.argv[0]), os.environ.get("FAKE_STATUS", "0")
with open("started.txt", "a") as file:
    print(json.dumps([name, *sys.argv[1:]]), file=file)
if name == "ringslice":
    print(json.dumps({{"from": name}}), flush=True)
    sys.exit(int(status) if status.isdigit() else 1)
print("[0]<stdout>:" + json.dumps({{"from": name}}))
print("[1]<stderr>:a line that comes late", flush=True)
if status.isdigit() and status != "0":
    print("Exit code: " + status, file=sys.stderr)
sys.exit(status != "0")
"""


@pytest.fixture
def fake_home(tmp_path: Path) -> Path:
    """A project whose commands write down their words, and end with the status that ``$FAKE_STATUS`` says."""
    folder = tmp_path / "a project" / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "ringslice").write_text(FAKE.format(python=sys.executable))
    (folder / "ringslice").chmod(0o755)
    (folder / "horovodrun").symlink_to("ringslice")
    return folder.parent.parent


@pytest.mark.integration
def test_hostile_params_stay_one_word_each(airflow: Airflow, fake_home: Path) -> None:
    root = "r '\"$(touch pwned)`touch pwned`\\ {{ 1 + 1 }} *"
    source, model, config = "{date}; touch pwned", "-m $HOME ~ *", "&& touch pwned.toml"
    params = {
        **{"source": source, "root": root, "model": model, "config": config, "run": "|| touch pwned"},
        **{
            "size": None,
            "name": "{date} $HOME",
            "keep": 3,
            "slices": 7,
            "min_accuracy": 0.5,
            "decay_until": 2.5,
            "overwrite": True,
            "runner": "hadoop",
        },
    }
    done = airflow.dags_test(params, {"RINGSLICE_HOME": str(fake_home)})
    assert done.finished.returncode == 0, done.log
    started = [json.loads(line) for line in (fake_home / "started.txt").read_text().splitlines()]
    day = started[0][6].removesuffix("; touch pwned")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", day)
    options, ranks = ["--json", f"--config={config}"], ["horovodrun", "-np", "2"]
    name, of_slices = f"--name={day} $HOME", ["--splits-from=newest", "--workers=2", "--slices=7", "--", root]
    of_run = ["--json", f"--data={root}", name, "--run=|| touch pwned"]
    of_length = ["--epochs=10", "--batch=64", "--decay-until=2.5"]
    assert started == [
        ["ringslice", "ingest", *options, "--overwrite", "--", f"{day}; touch pwned", root],
        ["ringslice", "normalize", *options, "--overwrite", "--runner=hadoop", "--", root],
        ["ringslice", "shard", *options, "--overwrite", "--runner=hadoop", name, *of_slices],
        ["ringslice", "verify", *options, "--runner=hadoop", name, "--", root],
        [*ranks, "train/main.py", *of_run, "--resume", f"--model={model}", *of_length],
        [*ranks, "train/evaluate.py", *of_run, "--min-accuracy=0.5"],
        ["ringslice", "prune", *options, "--keep=3", "--", root],
    ]
    assert {path.name for path in fake_home.iterdir()} == {".venv", "started.txt"}
    assert done.xcoms == {task: {"from": started[number][0]} for number, task in enumerate(TASKS)}


@pytest.mark.integration
def test_what_is_tried_again(airflow: Airflow, fake_home: Path) -> None:
    words = ("python", HERE / "try_statuses.py", airflow.home / "dags", 0, 1, 2, 3, 130, 137, "of-horovodrun-itself")
    told = last_json(succeeded(airflow.run(*words, RINGSLICE_HOME=str(fake_home))).stdout)
    for task in ("ingest", "train"):
        assert told[f"{task} 0"] == ""
        assert {told[f"{task} {status}"] for status in (1, 2)} == {"AirflowFailException"}
        assert {told[f"{task} {status}"] for status in (3, 130, 137)} == {"AirflowException"}
    assert told["train of-horovodrun-itself"] == "AirflowException"


def processes_of(root: Path) -> list[Process]:
    """The processes that a task has started for this root."""
    return find_all(lambda _, variables: f"PARAM_ROOT={root}".encode() in variables)


@pytest.mark.integration
@pytest.mark.parametrize("task", ["normalize", pytest.param("train", marks=pytest.mark.chaos)])
def test_a_stopped_task_ends_with_all_its_processes(
    task: str, airflow: Airflow, digits: Path, digits_root: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    if task == "normalize":
        succeeded(ringslice("ingest", digits, root))
    else:
        shutil.copytree(digits_root / "slices", root / "slices")
    earlier = "|".join(TASKS[: TASKS.index(task)])
    params = {"root": str(root), "size": "3000", "run": "stopped", "model": "mlp", "epochs": 5000}
    running = airflow.start_dags_test(params, "--mark-success-pattern", earlier)
    signs = {"normalize": "normalized/_work/**/attempt*", "train": "runs/stopped/checkpoints/*/checkpoint.json"}
    try:
        wait_until(lambda: list(root.glob(signs[task])), running)
        assert len(processes_of(root)) >= 2
        running.send_signal(signal.SIGTERM)  # as Airflow's supervisor does
        wait_until(lambda: not processes_of(root))
        question = f"SELECT state FROM task_instance WHERE task_id = '{task}' AND run_id = {{newest}}"
        wait_until(lambda: airflow.query(question) == [("up_for_retry",)])
    finally:
        running.kill()
        output = running.communicate()[0]
        for process in processes_of(root):
            process.send(signal.SIGKILL)
    assert "Command exited with return code 130" in output, output[-3000:]

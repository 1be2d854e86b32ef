"""The DAGs in a real Airflow: they parse, run the whole job, and fail, stop and quote as documented."""

import json
import re
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from etl.storage.place import Place, open_place
from tests.airflow_dags.real_airflow import Airflow, DagRun, DagsTest, processes_of
from tests.hadoop.cluster import Cluster
from tests.lib.commands import copy_some, succeeded, wait_until
from tests.lib.on_hadoop import set_site
from tests.lib.set_up import fail_in_one_line

STAGES = ["ingest", "normalize", "shard", "verify"]
DATASET_TASKS = [*STAGES, "check_quality", "report", "prune", "publish"]
MODEL_TASKS = ["plan", "train", "promote", "export"]
HERE = Path(__file__).parent
FAR_ZONE = "Pacific/Kiritimati"  # 14 hours ahead of UTC


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    made = Airflow(tmp_path_factory.mktemp("airflow") / "home")
    with fail_in_one_line():
        made.make()
    return made


@pytest.fixture(scope="session")
def few_digits(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight of each of three digits."""
    return copy_some(digits, tmp_path_factory.mktemp("source") / "few", "012", slice(8))


@pytest.mark.witness
@pytest.mark.integration
def test_they_parse(airflow: Airflow) -> None:
    described = succeeded(airflow.run("python", HERE / "describe.py", airflow.home / "dags")).stdout
    found = json.loads(described.splitlines()[-1])
    assert found["import_errors"] == {}
    dataset, model = found["dags"]["image_dataset"], found["dags"]["image_model"]
    for dag, tasks in ((dataset, DATASET_TASKS), (model, MODEL_TASKS)):
        assert list(dag["tasks"]) == tasks
        assert dag["settings"] == [False, True, 1]
        assert dag["retries"] == [2]
        assert dag["documented"]
        assert all(description and schema["type"] for description, schema in dag["params"].values())
    assert dataset["tasks"] == {task: DATASET_TASKS[at + 1 : at + 2] for at, task in enumerate(DATASET_TASKS)}
    assert (dataset["schedule"], model["schedule"]) == ("NullTimetable", "AssetTriggeredTimetable")
    names = found["run_names"]  # one of several candidates has -1 behind it
    assert len({*names, *(f"{name}-1" for name in names)}) == 2 * len(names)
    assert max(map(len, names)) < 250 and all(name.isascii() for name in names)


def make_dataset(airflow: Airflow, source: Path, root: Place, runner: str, **variables: str) -> dict[str, Any]:
    """Run the DAG of a dataset; returns the facts of its event."""
    params = {"source": str(source), "root": str(root), "size": "8", "slices": 2, "runner": runner}
    made = airflow.dags_test("image_dataset", params, variables)
    assert made.status == 0, made.log
    assert made.states == dict.fromkeys(DATASET_TASKS, "success")
    assert set(made.tries.values()) == {1}
    assert [made.xcoms[task]["stage"] for task in STAGES] == STAGES
    assert made.xcoms["shard"]["largest_class"] == made.xcoms["shard"]["smallest_class"] == {"0": 8}
    assert (root / "normalized/run.json").read_json()["runner"] == runner
    ((extra,),) = airflow.query("SELECT extra FROM asset_event ORDER BY id DESC LIMIT 1")
    event: dict[str, Any] = json.loads(extra)
    manifest = root / f"slices/{event['name']}/manifest.json"
    assert (event["root"], event["examples"]) == (str(root), 24)
    assert event["manifest_sha256"] == manifest.sha256()
    assert (root / f"{event['name']}-report.html").exists()
    return event


@pytest.mark.hadoop
@pytest.mark.integration
def test_a_dataset_on_a_cluster(
    airflow: Airflow, few_digits: Path, hadoop: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS has the data, YARN runs the jobs."""
    set_site(hadoop, monkeypatch)
    make_dataset(airflow, few_digits, open_place(f"{hadoop.uri}/tests/nightly"), "hadoop", **hadoop.environment())


@pytest.mark.witness
@pytest.mark.integration
def test_the_whole_job(airflow: Airflow, few_digits: Path, tmp_path: Path) -> None:
    root = open_place(str(tmp_path / "root"))
    event = make_dataset(airflow, few_digits, root, "local")
    candidates = [{"model": "mlp", "epochs": 2, "batch": 4}]
    params = {"root": str(root), "candidates": candidates, "run": "first", "ranks": 1}  # not the default
    trained = airflow.dags_test("image_model", params)
    assert trained.status == 0, trained.log
    assert set(trained.states.values()) == {"success"}
    assert trained.xcoms["train 0"]["ranks"] == 1
    assert len((root / "runs/first/result.json").read_json()["epochs"]) == 2
    champion = (root / "models/champion.json").read_json()["champion"]
    assert (trained.xcoms["promote"]["promoted"], champion["evaluated_slices"]) == (True, event["manifest_sha256"])
    assert (root / f"runs/{champion['run']}/export/export.json").exists()


FAKE = """#!{python} -S
import json, os, sys
file = os.environ["FAKE_LOG"]
with open(file, "a") as started:
    print(json.dumps(sys.argv[1:]), file=started)
print("ringslice: error: this is why", file=sys.stderr)
if os.environ["FAKE_BUSY"] and len(open(file).readlines()) == 1:
    print("ringslice: error: it is locked by process 1 on host; wait for it", file=sys.stderr)
    sys.exit(3)
summary = {{"removed_or_changed": 0, "images": 10, "rejects": 1, "largest_class": {{"a": 9}}, "manifest_sha256": ""}}
summary |= {{"smallest_class": {{"b": 3}}, "duplicates": {{"across_splits": 0}}, "examples": 9, "splits": {{}}}}
summary |= {{"place": "/root/runs/" + word[len("--run="):] for word in sys.argv if word.startswith("--run=")}}
print(json.dumps(summary, ensure_ascii=False), flush=True)
sys.exit(1 if "--model=diverges" in sys.argv else int(os.environ.get("FAKE_STATUS", "0")))
"""
ROOT = "r '\"$(touch pwned)`touch pwned`\\ {{ 1 + 1 }} * é漢🙂"
RUN = "|| touch\u2028pwned"
CANDIDATE = {"model": "-m $HOME ~ * {{ 1 + 1 }}", "epochs": 2.5, "lr": "$(touch pwned)"}
DIVERGES = {"model": "diverges"}
HOSTILE: dict[str, Any] = {
    **{"source": "{date}; touch pwned {time}", "root": ROOT, "config": "&& touch pwned.toml {% raw %}", "size": None},
    **{"name": "n -m {date} $HOME", "slices": 7, "overwrite": True, "runner": "hadoop", "keep": 3.0},
    **{"max_rejects": None, "max_imbalance": 3},
}
HOSTILE_MODEL: dict[str, Any] = {
    **{"root": ROOT, "name": "n $HOME", "run": RUN, "min_accuracy": 0.5},
    "candidates": [CANDIDATE | {"drop-last": True, "check": False}, DIVERGES, {"model": "cnn"}],
}
# In one process of Airflow. The fake command of each writes down its words in the file of its name.
FAKED = {
    "hostile": DagsTest("image_dataset", HOSTILE, {"FAKE_BUSY": "1"}),
    "hostile-model": DagsTest("image_model", HOSTILE_MODEL),
    "all-fail": DagsTest("image_model", {"candidates": [DIVERGES, DIVERGES]}),
    "unknown": DagsTest("image_dataset", {"siez": "28", "epoch": 1}),
    "imbalance": DagsTest("image_dataset", {"max_imbalance": 2.5}),
    "marked": DagsTest("image_dataset", {}, options=("--mark-success-pattern", "verify")),
    "status-1": DagsTest("image_dataset", {}, {"FAKE_STATUS": "1"}),
}


@dataclass(frozen=True)
class Faked:
    """When all DAG runs of `FAKED` began, the project that they ran commands of, and each run by its name."""

    began: datetime
    project: Path
    runs: dict[str, DagRun]

    def commands(self, name: str) -> list[list[str]]:
        path = self.project / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def faked(airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Faked:
    project = tmp_path_factory.mktemp("a project")
    command = project / ".venv/bin/ringslice"
    command.parent.mkdir(parents=True)
    command.write_text(FAKE.format(python=sys.executable))
    command.chmod(0o755)
    environment = {"RINGSLICE_HOME": str(project), "AIRFLOW__CORE__DEFAULT_TIMEZONE": FAR_ZONE}
    began = datetime.now(ZoneInfo(FAR_ZONE))
    tests = [
        replace(each, variables={"FAKE_BUSY": "", **each.variables, "FAKE_LOG": name}) for name, each in FAKED.items()
    ]
    return Faked(began, project, dict(zip(FAKED, airflow.several_dags_tests(tests, environment), strict=True)))


@pytest.mark.integration
def test_hostile_params_stay_one_word_each(faked: Faked) -> None:
    """Also of a try that waits for the one before."""
    done, (busy, *started) = faked.runs["hostile"], faked.commands("hostile")
    assert done.status == 0, done.log
    assert done.tries["ingest"] == 1
    assert busy == started[0]
    day, moment = started[0][5].split("; touch pwned ")
    assert f"{day} {moment}" >= f"{faked.began:%Y-%m-%d %H%M%S}"
    options, runner, name = ["--json", f"--config={HOSTILE['config']}"], "--runner=hadoop", f"--name=n -m {day} $HOME"
    of_slices = ["--splits-from=newest", "--workers=2", "--slices=7"]
    assert started == [
        ["ingest", *options, "--overwrite", "--", f"{day}; touch pwned {moment}", ROOT],
        ["normalize", *options, "--overwrite", runner, "--max-rejects=1", "--", ROOT],
        ["shard", *options, "--overwrite", runner, name, *of_slices, "--", ROOT],
        ["verify", *options, runner, name, "--", ROOT],
        ["report", *options, name, f"--output={ROOT}/n -m {day} $HOME-report.html", "--", ROOT],
        ["prune", *options, "--keep=3", "--keep-runs=7", "--", ROOT],
    ]


@pytest.mark.integration
def test_a_candidate_that_fails_is_left_out(faked: Faked) -> None:
    """With hostile params, too. Nothing is promoted if all fail."""
    done, (*trained, promoted, exported) = faked.runs["hostile-model"], faked.commands("hostile-model")
    assert [done.states[f"train {number}"] for number in range(3)] == ["success", "failed", "success"], done.log
    slices = [f"--data={ROOT}", "--name=n $HOME"]
    words = ["train", "--json", "--ranks=2", *slices, f"--run={RUN}-1", "--resume"]
    words += [f"--{name}={value}" for name, value in CANDIDATE.items()]
    assert len(trained) == 3
    assert [*words, "--drop-last", "--no-check"] in trained
    limits = ["--min-accuracy=0.5", "--max-class-drop=0.1"]
    assert promoted == ["promote", "--json", "--ranks=2", *slices, *limits, "--", f"{RUN}-1", f"{RUN}-3"]
    assert exported == ["export", "--json", slices[0], "--run=champion"]
    none = faked.runs["all-fail"].states
    assert (none["promote"], none["export"]) == ("upstream_failed", "upstream_failed")
    assert {path.name for path in faked.project.iterdir()} == {".venv", *FAKED} - {"unknown"}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "error", "started"),
    [
        ("status-1", "DataError: ingest ended with status 1: this is why", 1),
        ("unknown", "UsageError: no such param: 'epoch', 'siez'. Give: config, ", 0),
        ("imbalance", "max_rejects: 0.1 is above 0.05; max_imbalance: 3 is", 4),
        ("marked", "DataError: no summary of verify (marked as success?). Clear it", 3),
    ],
)
def test_what_fails(name: str, error: str, started: int, faked: Faked) -> None:
    """The reason is in the exception, and nothing is tried again."""
    done = faked.runs[name]
    assert done.status == 1
    assert error in done.log, done.log[-3000:]
    assert len(faked.commands(name)) == started
    if started == 1:
        assert done.states["ingest"] == "failed"
        assert re.search(r"\[error +\] ringslice: error: this is why", done.log)


def is_up_for_retry(airflow: Airflow, task: str) -> bool:
    question = f"SELECT state FROM task_instance WHERE task_id = '{task}' AND run_id = {{newest}}"
    return airflow.query(question) == [("up_for_retry",)]


@pytest.mark.integration
def test_nothing_outlives_a_task_that_is_ended(airflow: Airflow, digits_root: Path, tmp_path: Path) -> None:
    """By SIGTERM, which Airflow's supervisor sends; test_scheduler.py has SIGKILL."""
    root = tmp_path / "root"
    shutil.copytree(digits_root / "raw", root / "raw")
    params = {"root": str(root), "size": "3000"}
    running = airflow.start_dags_test("image_dataset", params, "--mark-success-pattern", "ingest")
    try:
        wait_until(lambda: list(root.glob("normalized/_work/**/attempt*")) and len(processes_of(root)) >= 2, running)
        running.terminate()
        wait_until(lambda: not processes_of(root))
        wait_until(lambda: is_up_for_retry(airflow, "normalize"))
    finally:
        running.kill()
        output = running.communicate()[0]
        for process in processes_of(root):
            process.send(signal.SIGKILL)
    assert "normalize ended with status 130: interrupted" in output, output[-3000:]

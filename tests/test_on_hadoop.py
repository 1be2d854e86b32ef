"""The whole chain on a real cluster: the same bytes from every runner, on every root, with every driver."""

import json
from pathlib import Path
from typing import Any

import pytest

from etl.storage.hdfs_settings import DRIVER_VARIABLE
from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.lib.commands import REPOSITORY, Finished, failed, run, succeeded
from tests.lib.on_hadoop import OPTIONS, digests

JOB_TIMEOUT_S = 600

STAGES = {"raw": "dataset.json", "normalized": "dataset.json", "slices/default": "manifest.json"}


def runs(root: Place) -> list[dict[str, Any]]:
    return [(root / stage / "run.json").read_json() for stage in STAGES]


def hdfs_command(cluster: Cluster, *words: object) -> Finished:
    return succeeded(run(cluster.home / "bin" / "hdfs", *words, variables=cluster.environment()))


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(("file", "local", "native"), marks=pytest.mark.witness),
        ("hdfs", "hadoop", "native"),  # also a part of the witness in tests/test_kills_on_hadoop.py
        pytest.param(("hdfs", "inline", "native"), marks=pytest.mark.chaos),
        pytest.param(("hdfs", "local", "libhdfs"), marks=pytest.mark.chaos),
        pytest.param(("hdfs", "hadoop", "libhdfs"), marks=pytest.mark.chaos),
        pytest.param(("file", "hadoop", "native"), marks=pytest.mark.chaos),
        pytest.param(("hdfs", "inline", "libhdfs"), marks=pytest.mark.chaos),
        pytest.param(("hdfs", "local", "native"), marks=pytest.mark.chaos),
    ],
    ids="-".join,
)
def test_every_way_gives_the_same_bytes(
    way: tuple[str, str, str], hadoop_undisturbed: Cluster, hdfs: Place, few_digits: Path, expected: dict[str, str]
) -> None:
    scheme, runner, driver = way
    root = hdfs / "digits" if scheme == "hdfs" else open_place(str(few_digits.parent / f"root-{runner}"))
    variables = {**hadoop_undisturbed.environment(), DRIVER_VARIABLE: driver}
    words = ("pipeline", few_digits, root, *OPTIONS, "-r", runner)
    finished = succeeded(run("ringslice", *words, timeout_s=JOB_TIMEOUT_S, variables=variables))
    assert "Exception" not in finished.stderr
    assert digests(root) == expected
    assert succeeded(run("ringslice", *words, timeout_s=180, variables=variables)).stdout.count("was done before") == 3
    for facts in runs(root)[1:]:
        assert facts["runner"] == runner
        lines = facts["counters"]["lines"]
        assert set(lines) == {"in a YARN container" if runner == "hadoop" else "on the driver's machine"}
        if runner == "hadoop":
            assert len(facts["applications"]) == 1
            require_succeeded(hadoop_undisturbed, facts["applications"])
    if scheme == "hdfs":
        assert "Status: HEALTHY" in hdfs_command(hadoop_undisturbed, "fsck", hdfs.path).stdout


def require_succeeded(cluster: Cluster, applications: list[str]) -> None:
    states = {each["id"]: (each["state"], each["finalStatus"]) for each in cluster.yarn_applications()}
    assert {states[each] for each in applications} == {("FINISHED", "SUCCEEDED")}


def test_a_job_runs_as_a_plain_script_in_a_queue_with_a_priority(
    hadoop_undisturbed: Cluster, hdfs: Place, few_digits: Path
) -> None:
    variables = hadoop_undisturbed.environment()
    root = hdfs / "digits"
    succeeded(run("ringslice", "ingest", few_digits, root, "--pack-size", "12KB", variables=variables))
    words = (root, "--size", "8", "--queue", "nightly", "--priority", "HIGH", "--json", "--task-memory", "768MB")
    script = REPOSITORY / "mapreduce" / "normalize.py"
    finished = succeeded(run(script, "-r", "hadoop", *words, timeout_s=JOB_TIMEOUT_S, variables=variables))
    assert json.loads(finished.stdout)["good"] == len(list(few_digits.rglob("*.png")))
    application = (root / "normalized" / "run.json").read_json()["applications"][0]
    (found,) = [each for each in hadoop_undisturbed.yarn_applications() if each["id"] == application]
    assert found["queue"].endswith("nightly")
    assert found["priority"] != 0


def test_failures_of_yarn_are_one_line(hadoop_undisturbed: Cluster, hdfs: Place, few_digits: Path) -> None:
    variables = hadoop_undisturbed.environment()
    root = hdfs / "digits"
    succeeded(run("ringslice", "ingest", few_digits, root, variables=variables))
    # a size at which a task takes long, so that YARN sees its memory before it is done
    start = ("ringslice", "normalize", root, "-r", "hadoop", "--size", "2048")
    before = digests(root)
    failed(run(*start, "--queue", "nope", variables=variables), 3, "--queue 'nope' does not exist at http://")
    nowhere = variables | {"HADOOP_CONF_DIR": ""} | {"HADOOP_HOME": "/proc/none"}
    failed(run(*start, variables=nowhere), 3, "no ResourceManager is known")
    assert digests(root) == before
    small = ("--task-memory", "64MB", "--max-memory", "64MiB")
    finished = run(*start, *small, timeout_s=JOB_TIMEOUT_S, variables=variables)
    failed(finished, 3, "give more with --task-memory")
    assert "Exception" not in finished.stderr
    assert not [path for path in digests(root) if "attempt" in path or "tasks-" in path]

"""The whole chain on a real cluster: the same bytes from every runner, on every root, with every driver."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etl.storage.hdfs_settings import DRIVER_VARIABLE
from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.lib.commands import REPOSITORY, Finished, failed, ringslice, run, succeeded

IMAGES = 240
OPTIONS = (
    "--size",
    "20",
    "--color",
    "gray",
    "--format",
    "png",
    "--pack-size",
    "12KB",
    "--workers",
    "2",
    "--slices",
    "4",
)
JOB_TIMEOUT_S = 600

STAGES = {"raw": "dataset.json", "normalized": "dataset.json", "slices/default": "manifest.json"}


@pytest.fixture(scope="module")
def few_digits(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every seventh of the digits, in a folder per class."""
    folder = tmp_path_factory.mktemp("few")
    for path in sorted(digits.rglob("*.png"))[:: 1797 // IMAGES]:
        copy = folder / path.relative_to(digits)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="module")
def expected(few_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """SHA-256 of all that the pipeline makes of them in one process, on local files."""
    root = tmp_path_factory.mktemp("roots") / "inline"
    succeeded(ringslice("pipeline", few_digits, root, *OPTIONS, "-r", "inline"))
    return digests(open_place(str(root)))


@pytest.fixture
def hdfs(hadoop: Cluster, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A new folder on the cluster, for a test that also says whether it wants the cluster alone or undisturbed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in hadoop.environment().items():
            patch.setenv(name, value)
        name = re.sub(r"\W+", "-", request.node.name)
        folder = open_place(f"{hadoop.uri}/tests/{name}").make_folder()
        yield folder
        folder.delete()


def digests(root: Place) -> dict[str, str]:
    """SHA-256 of every file below ``root`` by its path, but for what tells of a run."""
    files = [info.path for info in root.children(recursive=True) if info.is_file and info.base_name != "run.json"]
    return {path.removeprefix(f"{root.path}/"): Place(root.filesystem, path).sha256() for path in files}


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
    told = succeeded(run("ringslice", *words, timeout_s=JOB_TIMEOUT_S, variables=variables))
    assert "Exception" not in told.stderr
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
    told = succeeded(run(script, "-r", "hadoop", *words, timeout_s=JOB_TIMEOUT_S, variables=variables))
    assert json.loads(told.stdout)["good"] == len(list(few_digits.rglob("*.png")))
    application = (root / "normalized" / "run.json").read_json()["applications"][0]
    (found,) = [each for each in hadoop_undisturbed.yarn_applications() if each["id"] == application]
    assert found["queue"].endswith("nightly")
    assert found["priority"] != 0


def test_what_is_wrong_with_yarn_is_one_line(hadoop_undisturbed: Cluster, hdfs: Place, few_digits: Path) -> None:
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
    told = run(*start, *small, timeout_s=JOB_TIMEOUT_S, variables=variables)
    failed(told, 3, "give more with --task-memory")
    assert "Exception" not in told.stderr
    assert not [path for path in digests(root) if "attempt" in path or "tasks-" in path]

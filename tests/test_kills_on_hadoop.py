"""Jobs on a real cluster that lose a task, a daemon or their driver in the middle: the same bytes in the end.

Every kill proves that it hit: the process was there when it was killed, and the cluster or the command reports it.
"""

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.storage.place import Place
from tests.hadoop.cluster import Cluster
from tests.hadoop.jobs import JobRun, attempt_of, masters, tasks
from tests.hadoop.processes import Process
from tests.lib.commands import REPOSITORY, run, succeeded, wait_until
from tests.lib.on_hadoop import OPTIONS, digests
from tests.test_on_hadoop import JOB_TIMEOUT_S, require_succeeded

NORMALIZE = (REPOSITORY / "mapreduce" / "normalize.py", "-r", "hadoop", *OPTIONS[:6])
SHARD = (REPOSITORY / "mapreduce" / "shard.py", "-r", "hadoop", *OPTIONS[8:])
ONE_LINE_EACH = ("-D", "mapreduce.input.lineinputformat.linespermap=1")

Kill = Callable[[JobRun], None]

pytestmark = pytest.mark.usefixtures("end_sessions")


@pytest.fixture
def ingested(hadoop_alone: Cluster, hdfs: Place, few_digits: Path) -> Place:
    root = hdfs / "digits"
    words = ("ringslice", "ingest", few_digits, root, *OPTIONS[6:8])
    succeeded(run(*words, variables=hadoop_alone.environment()))
    return root


@pytest.fixture
def normalized(ingested: Place, hadoop_alone: Cluster) -> Place:
    words = ("ringslice", "normalize", ingested, "-r", "inline", *OPTIONS[:6])
    succeeded(run(*words, variables=hadoop_alone.environment()))
    return ingested


def kill(process: Process) -> None:
    assert process.lives
    process.send(signal.SIGKILL)


def another(find: Callable[[], list[Process]], than: Process) -> Callable[[], list[Process]]:
    return lambda: [each for each in find() if each != than]


def lose_a_mapper(job: JobRun) -> None:
    """Its attempt fails, and YARN tries again."""
    lose_a_task(job, job.mapper())


def lose_a_reducer(job: JobRun) -> None:
    lose_a_task(job, job.reducer())


def lose_a_task(job: JobRun, task: Process) -> None:
    kill(task)
    job.wait_until("a message about it", lambda: "its Python was ended by SIGKILL" in job.errors())


def lose_the_master(job: JobRun) -> None:
    """The ResourceManager starts another."""
    job.mapper()
    master = job.master()
    kill(master)
    job.wait_for("another application master", another(lambda: masters(job.cluster), master))


def lose_the_node_manager(job: JobRun) -> None:
    job.mapper()
    job.cluster.kill("nodemanager")
    job.cluster.restart("nodemanager")


def lose_the_data_node(job: JobRun) -> None:
    """The mapper is stopped meanwhile; its blocks are out of reach for two seconds."""
    mapper = job.mapper()
    mapper.send(signal.SIGSTOP)
    job.cluster.kill("datanode")
    mapper.send(signal.SIGCONT)
    time.sleep(2)
    job.cluster.restart("datanode")


def finished_as_undisturbed(root: Place, expected: dict[str, str], job: JobRun, stage: str) -> None:
    """The stage is done: the same files with the same bytes, and no other file."""
    assert job.wait() == 0, job.errors()
    assert "Exception" not in job.errors().replace("RuntimeException: PipeMapRed", "")
    assert digests(root / stage) == {
        path.removeprefix(f"{stage}/"): digest for path, digest in expected.items() if path.startswith(f"{stage}/")
    }
    require_succeeded(job.cluster, (root / stage / "run.json").read_json()["applications"])


@pytest.mark.witness
def test_a_pipeline_that_lost_a_mapper_its_master_and_its_driver_gives_the_same_bytes(
    ingested: Place, few_digits: Path, hadoop_alone: Cluster, expected: dict[str, str], tmp_path: Path
) -> None:
    words = (*NORMALIZE, ingested, *ONE_LINE_EACH)
    first = JobRun(hadoop_alone, tmp_path / "first.log", *words)
    lose_a_mapper(first)
    lose_the_master(first)
    first.kill_driver()
    second = JobRun(hadoop_alone, tmp_path / "second.log", *words)
    finished_as_undisturbed(ingested, expected, second, "normalized")
    assert "joining application_" in second.errors()
    assert len({each["id"] for each in hadoop_alone.yarn_applications() if str(ingested) in each["name"]}) == 1
    pipeline = ("ringslice", "pipeline", few_digits, ingested, *OPTIONS, "-r", "hadoop")
    finished = succeeded(run(*pipeline, timeout_s=JOB_TIMEOUT_S, variables=hadoop_alone.environment()))
    assert finished.stdout.count("was done before") == 2
    assert digests(ingested) == expected


def test_shard_loses_a_reducer_the_node_manager_and_the_data_node(
    normalized: Place, hadoop_alone: Cluster, expected: dict[str, str], tmp_path: Path
) -> None:
    job = JobRun(hadoop_alone, tmp_path / "shard.log", *SHARD, normalized)
    lose_the_data_node(job)
    lose_the_node_manager(job)
    lose_a_reducer(job)
    finished_as_undisturbed(normalized, expected, job, "slices/default")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.chaos), signal.SIGTERM])
def test_an_interrupt_ends_the_application_too(
    number: signal.Signals, ingested: Place, hadoop_alone: Cluster, tmp_path: Path
) -> None:
    job = JobRun(hadoop_alone, tmp_path / "log", "ringslice", "normalize", ingested, "-r", "hadoop", "--size", 20)
    mapper = job.mapper()
    mapper.send(signal.SIGSTOP)
    job.send_all(number)
    assert job.wait() == 130, job.errors()
    assert job.errors().count("ringslice: error: interrupted") == 1
    (application,) = [each for each in hadoop_alone.yarn_applications() if str(ingested) in each["name"]]
    assert application["finalStatus"] == "KILLED"
    wait_until(lambda: not tasks(hadoop_alone, "--mapper") and not masters(hadoop_alone))
    left = digests(ingested / "normalized")
    assert list(left) == ["_work/plan.json"]


def test_restart_ends_the_job_that_runs(
    ingested: Place, hadoop_alone: Cluster, expected: dict[str, str], tmp_path: Path
) -> None:
    first = JobRun(hadoop_alone, tmp_path / "first.log", *NORMALIZE, ingested)
    first.mapper().send(signal.SIGSTOP)
    busy = run(*NORMALIZE, ingested, variables=hadoop_alone.environment())
    assert busy.returncode == 3
    assert "is at work already (process" in busy.stderr
    first.kill_driver()
    second = JobRun(hadoop_alone, tmp_path / "second.log", *NORMALIZE, ingested, "--restart")
    finished_as_undisturbed(ingested, expected, second, "normalized")
    states = [each["finalStatus"] for each in hadoop_alone.yarn_applications() if str(ingested) in each["name"]]
    assert sorted(states) == ["KILLED", "SUCCEEDED"]


SPECULATE = (
    *("-D", "mapreduce.job.reduces=3", "-D", "mapreduce.reduce.speculative=true"),
    *("-D", "mapreduce.job.speculative.retry-after-no-speculate=500"),
)


@pytest.mark.chaos
def test_a_slow_attempt_and_a_speculative_one(ingested: Place, hadoop_alone: Cluster, tmp_path: Path) -> None:
    """Both are at work at once; one publishes, the other removes its own, and the slices are those of one."""
    variables = hadoop_alone.environment()
    words = ("-r", "inline", "--size", 160, "--color", "gray", "--format", "raw")
    succeeded(run("ringslice", "normalize", ingested, *words, variables=variables))
    alone = ("ringslice", "shard", ingested, *OPTIONS[8:], "-r", "inline", "--name", "alone")
    succeeded(run(*alone, variables=variables))
    job = JobRun(hadoop_alone, tmp_path / "shard.log", *SHARD, *SPECULATE, ingested)
    slow = job.reducer()
    slow.send(signal.SIGSTOP)
    task, _, number = attempt_of(slow).rpartition("_")
    second = job.wait_for(
        "a second attempt", lambda: [each for each in tasks(job.cluster, "--reducer") if is_second(each, task)]
    )
    assert attempt_of(second) != f"{task}_{number}"
    assert slow.lives
    slow.send(signal.SIGCONT)
    assert job.wait() == 0, job.errors()
    assert digests(ingested / "slices/default") == digests(ingested / "slices/alone")
    assert any(task in each for each in (ingested / "slices/default/run.json").read_json()["attempts_lost"])


def is_second(process: Process, task: str) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, StopIteration):
        attempt, _, number = attempt_of(process).rpartition("_")
        return attempt == task and number != "0"
    return False

"""The whole chain on a real cluster: the same bytes from every runner, root and driver, whatever is killed meanwhile.

Every kill proves that it hit: the process was there when it was killed, and the cluster or the command reports it.
"""

import contextlib
import re
import shutil
import signal
import time
from itertools import product
from pathlib import Path

import pytest

from etl.storage.hdfs_settings import DRIVER_VARIABLE
from etl.storage.place import Place, open_place
from tests.conftest import TreeMaker
from tests.hadoop.cluster import Cluster
from tests.hadoop.jobs import JobRun, attempt_of, masters, tasks
from tests.hadoop.processes import Process
from tests.lib.commands import REPOSITORY, failed, run, succeeded, wait_until
from tests.lib.in_process import ringslice_here
from tests.lib.on_hadoop import OPTIONS, digests

JOB_TIMEOUT_S = 600


WITNESS = ("file", "local", "native")
OTHERS = [("file", "hadoop", "native"), *product(["hdfs"], ["inline", "local", "hadoop"], ["native", "libhdfs"])]


@pytest.mark.parametrize(
    "way",
    [pytest.param(WITNESS, marks=pytest.mark.witness), *(pytest.param(way, marks=pytest.mark.chaos) for way in OTHERS)],
    ids="-".join,
)
def test_every_way_gives_the_same_bytes(
    way: tuple[str, str, str], hadoop: Cluster, hdfs: Place, few_digits: Path, expected: dict[str, str]
) -> None:
    scheme, runner, driver = way
    root = hdfs / "digits" if scheme == "hdfs" else open_place(str(few_digits.parent / f"root-{runner}"))
    variables = {**hadoop.environment(), DRIVER_VARIABLE: driver}
    words = ("pipeline", few_digits, root, *OPTIONS, "-r", runner)
    finished = succeeded(run("ringslice", *words, timeout_s=JOB_TIMEOUT_S, variables=variables))
    assert "Exception" not in finished.stderr
    assert digests(root) == expected
    assert succeeded(run("ringslice", *words, timeout_s=180, variables=variables)).stdout.count("was done before") == 3
    for stage in ("normalized", "slices/default"):
        facts = (root / stage / "run.json").read_json()
        assert facts["runner"] == runner
        lines = facts["counters"]["lines"]
        assert set(lines) == {"in a YARN container" if runner == "hadoop" else "on the driver's machine"}
        if runner == "hadoop":
            assert len(facts["applications"]) == 1
            require_succeeded(hadoop, facts["applications"])
    if scheme == "hdfs":
        fsck = run(hadoop.home / "bin" / "hdfs", "fsck", hdfs.path, variables=hadoop.environment())
        assert "Status: HEALTHY" in succeeded(fsck).stdout


def require_succeeded(cluster: Cluster, applications: list[str]) -> None:
    states = {each["id"]: (each["state"], each["finalStatus"]) for each in cluster.yarn_applications()}
    assert {states[each] for each in applications} == {("FINISHED", "SUCCEEDED")}


def test_failures_of_yarn_are_one_line(hadoop: Cluster, hdfs: Place, few_digits: Path) -> None:
    variables = hadoop.environment()
    root = hdfs / "digits"
    succeeded(ringslice_here("ingest", few_digits, root))
    # a size at which a task takes long, so that YARN sees its memory before it is done
    start = ("ringslice", "normalize", root, "-r", "hadoop", "--size", "2048")
    before = digests(root)
    failed(run(*start, "--queue", "nope", variables=variables), 3, "--queue 'nope' does not exist at http://")
    nowhere = variables | {"HADOOP_CONF_DIR": ""} | {"HADOOP_HOME": "/proc/none"}
    failed(run(*start, variables=nowhere), 3, "no ResourceManager is known")
    assert digests(root) == before
    small = ("--task-memory", "64MB", "--max-memory", "64MiB")
    script = (REPOSITORY / "mapreduce/normalize.py", root, *start[3:], "-D", "mapreduce.map.maxattempts=2")
    finished = run(*script, *small, timeout_s=JOB_TIMEOUT_S, variables=variables)
    failed(finished, 3, "give more with --task-memory")
    assert "Exception" not in finished.stderr
    assert not [path for path in digests(root) if "attempt" in path or "tasks-" in path]


NORMALIZE = (REPOSITORY / "mapreduce" / "normalize.py", "-r", "hadoop", *OPTIONS[:6])
SHARD = (REPOSITORY / "mapreduce" / "shard.py", "-r", "hadoop", *OPTIONS[8:])
ONE_LINE_EACH = ("-D", "mapreduce.input.lineinputformat.linespermap=1")

pytestmark = pytest.mark.usefixtures("end_sessions")


@pytest.fixture
def ingested(hadoop_alone: Cluster, hdfs: Place, few_digits: Path) -> Place:
    root = hdfs / "digits"
    succeeded(ringslice_here("ingest", few_digits, root, *OPTIONS[6:8]))
    return root


@pytest.fixture
def normalized(ingested: Place) -> Place:
    succeeded(ringslice_here("normalize", ingested, "-r", "inline", *OPTIONS[:6]))
    return ingested


def kill(process: Process) -> None:
    assert process.lives
    process.send(signal.SIGKILL)


def lose_a_task(job: JobRun, task: Process) -> None:
    """Its attempt fails, and YARN tries again."""
    kill(task)
    job.wait_until("a message about it", lambda: "its Python was ended by SIGKILL" in job.errors())


def lose_the_master(job: JobRun) -> None:
    job.mapper()
    master = job.master()
    kill(master)
    job.wait_for("another master", lambda: [each for each in masters(job.cluster) if each != master])


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
    lose_a_task(first, first.mapper())
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
    job.mapper()
    job.cluster.kill("nodemanager")
    job.cluster.restart("nodemanager")
    lose_a_task(job, job.reducer())
    finished_as_undisturbed(normalized, expected, job, "slices/default")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.chaos), signal.SIGTERM])
def test_interrupts_end_the_job(number: signal.Signals, ingested: Place, hadoop_alone: Cluster, tmp_path: Path) -> None:
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


def test_restart_ends_the_job_and_the_next_goes_to_a_queue(
    ingested: Place, hadoop_alone: Cluster, expected: dict[str, str], tmp_path: Path
) -> None:
    first = JobRun(hadoop_alone, tmp_path / "first.log", *NORMALIZE, ingested)
    first.mapper().send(signal.SIGSTOP)
    busy = run(*NORMALIZE, ingested, variables=hadoop_alone.environment())
    assert busy.returncode == 3
    assert "is locked by process" in busy.stderr
    first.kill_driver()
    queue = ("--queue", "nightly", "--priority", "HIGH")
    second = JobRun(hadoop_alone, tmp_path / "second.log", *NORMALIZE, ingested, "--restart", *queue)
    finished_as_undisturbed(ingested, expected, second, "normalized")
    jobs = {each["finalStatus"]: each for each in hadoop_alone.yarn_applications() if str(ingested) in each["name"]}
    assert set(jobs) == {"KILLED", "SUCCEEDED"}
    assert jobs["SUCCEEDED"]["queue"].endswith("nightly")
    assert jobs["SUCCEEDED"]["priority"] != jobs["KILLED"]["priority"]


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
    task = attempt_of(slow).removesuffix("_0")
    job.wait_for(
        "a second attempt", lambda: [each for each in tasks(job.cluster, "--reducer") if is_second(each, task)]
    )
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


FAIR = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fair.FairScheduler"
ALLOCATIONS = """<?xml version="1.0"?>
<allocations><queue name="images"><queue name="small"/><queue name="large"/></queue><queue name="other"/></allocations>
"""


def put(path: Path, name: str, value: object) -> None:
    """Set a property of a site file, in place of the one that is there."""
    text = re.sub(rf"<property><name>{re.escape(name)}</name>.*</property>\n", "", path.read_text())
    added = f"<property><name>{name}</name><value>{value}</value></property>\n</configuration>"
    path.write_text(text.replace("</configuration>", added))


@pytest.mark.chaos
def test_fair_scheduler_and_another_default_filesystem(make_tree: TreeMaker, tmp_path: Path) -> None:
    """A queue is that of the scheduler; all of a job's files are on the root's HDFS."""
    source = make_tree({"a": 3, "b": 3})
    with Cluster.start(tmp_path / "own", die_with_parent=True) as own:
        put(own.conf_dir / "yarn-site.xml", "yarn.resourcemanager.scheduler.class", FAIR)
        (own.conf_dir / "fair-scheduler.xml").write_text(ALLOCATIONS)
        own.restart("resourcemanager")
        own.restart("nodemanager")
        client = tmp_path / "client"
        shutil.copytree(own.conf_dir, client)
        put(client / "core-site.xml", "fs.defaultFS", (tmp_path / "default").as_uri())
        variables = own.environment() | {"HADOOP_CONF_DIR": str(client)}
        root = f"{own.uri}/tmp/images"

        doctor = run("ringslice", "doctor", "--only", "yarn", "--queue", "images.small", "--json", variables=variables)
        assert '"queues", "state": "ok"' in succeeded(doctor).stdout
        succeeded(run("ringslice", "ingest", source, root, variables=variables))
        start = ("ringslice", "normalize", root, "--size", "8", "-r", "hadoop", "--queue")
        succeeded(run(*start, "images.small", timeout_s=JOB_TIMEOUT_S, variables=variables))
        (application,) = own.yarn_applications()
        assert (application["queue"], application["finalStatus"]) == ("root.images.small", "SUCCEEDED")
        packed = open_place(f"{own.uri}/user/{own.user}/.ringslice/python")
        assert [info.base_name for info in packed.children()] != []
        job = open_place(f"{root}/normalized/run.json").read_json()
        assert job["applications"] == [application["id"]]

"""The Hadoop that other tests use is real, and can be disturbed and ended like one."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hadoop import cluster as cluster_module
from tests.hadoop.cluster import DAEMONS, Cluster
from tests.hadoop.configuration import free_ports
from tests.hadoop.processes import Process
from tests.hadoop.state import find_left

REPOSITORY = Path(__file__).parents[2]


def command(cluster: Cluster, *words: str, **more: str) -> str:
    """Run one of Hadoop's commands as a user does; what it printed."""
    program, *rest = words
    environment = {"PATH": os.environ["PATH"], **cluster.environment(), **more}
    called = [str(cluster.home / "bin" / program), *rest]
    finished = subprocess.run(called, env=environment, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def make(folder: Path, word: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m tests.hadoop`, as make hadoop-up and the like do."""
    called = [sys.executable, "-m", "tests.hadoop", word, "--folder", str(folder)]
    return subprocess.run(called, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)


def wait_until(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_it_is_up_and_told_so(hadoop_undisturbed: Cluster) -> None:
    assert all(hadoop_undisturbed.serves(daemon) for daemon in DAEMONS)
    told = make(hadoop_undisturbed.folder, "status")
    assert told.returncode == 0, told.stderr
    assert [line.split()[:2] for line in told.stdout.splitlines()] == [[daemon, "up"] for daemon in DAEMONS]


def test_commands_work(hadoop_undisturbed: Cluster) -> None:
    _, *lines = command(hadoop_undisturbed, "hadoop", "fs", "-ls", "/").splitlines()
    modes = {line.split()[-1]: line.split()[0] for line in lines}
    assert (modes["/tmp"], modes["/user"]) == ("drwxrwxrwt", "drwxr-xr-x")


def test_the_class_path_is_this_clusters(hadoop_undisturbed: Cluster) -> None:
    names = command(hadoop_undisturbed, "hadoop", "classpath", "--glob").strip().split(":")
    assert names[0] == str(hadoop_undisturbed.conf_dir)
    assert any(Path(name).name == "hadoop-common-3.4.2.jar" for name in names)


def test_another_process_attaches(hadoop_undisturbed: Cluster) -> None:
    other = Cluster.attach(hadoop_undisturbed.folder)
    assert other.uri == hadoop_undisturbed.uri
    assert [other.pid(daemon) for daemon in DAEMONS] == [hadoop_undisturbed.pid(daemon) for daemon in DAEMONS]
    assert other.yarn_applications(tag="nobody-has-this-tag") == []


def test_data_outlives_a_killed_data_node(hadoop_alone: Cluster, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("kept")
    command(hadoop_alone, "hadoop", "fs", "-put", "-f", str(tmp_path / "text"), "/tmp/text")
    hadoop_alone.kill("datanode")
    assert not hadoop_alone.lives("datanode")
    assert make(hadoop_alone.folder, "status").returncode == 3
    hadoop_alone.restart("datanode")
    assert command(hadoop_alone, "hadoop", "fs", "-cat", "/tmp/text") == "kept"


def test_a_node_manager_starts_again(hadoop_alone: Cluster) -> None:
    before = hadoop_alone.pid("nodemanager")
    hadoop_alone.restart("nodemanager")
    assert hadoop_alone.pid("nodemanager") != before
    assert hadoop_alone.serves("nodemanager")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.start(tmp_path / "own", die_with_parent=True) as cluster:
        yield cluster


@pytest.mark.chaos
def test_two_run_side_by_side(hadoop: Cluster, own: Cluster) -> None:
    command(own, "hadoop", "fs", "-touchz", "/tmp/of-one")
    assert "of-one" in command(own, "hadoop", "fs", "-ls", "/tmp")
    assert "of-one" not in command(hadoop, "hadoop", "fs", "-ls", "/tmp")
    own.stop()
    assert hadoop.serves("namenode")
    assert make(own.folder, "status").returncode == 3


@pytest.mark.chaos
@pytest.mark.parametrize("daemon", DAEMONS)
def test_each_daemon_starts_again(own: Cluster, daemon: str) -> None:
    own.kill(daemon)
    own.restart(daemon)
    for each in DAEMONS:
        own.wait_for(each)


def submit(cluster: Cluster, tag: str, mapper: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a streaming job of one small file."""
    (folder / "text").write_text("a line\n")
    command(cluster, "hadoop", "fs", "-put", "-f", str(folder / "text"), "/tmp/text")
    jar = cluster.home / "share" / "hadoop" / "tools" / "lib" / "hadoop-streaming-3.4.2.jar"
    places = ["-input", "/tmp/text", "-output", f"/tmp/{tag}"]
    words = ["jar", str(jar), "-D", f"mapreduce.job.tags={tag}", "-D", "mapreduce.job.maps=1", *places]
    return subprocess.Popen(
        [str(cluster.home / "bin" / "hadoop"), *words, "-mapper", mapper],
        env={"PATH": os.environ["PATH"], **cluster.environment()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def maps(cluster: Cluster, tag: str) -> bool:
    """Whether a job has a task that runs, beside its application master."""
    return any(each["runningContainers"] > 1 for each in cluster.yarn_applications(tag))


@pytest.mark.chaos
def test_a_job_outlives_its_node_manager(own: Cluster, tmp_path: Path) -> None:
    with submit(own, "outlives", "sleep 8", tmp_path) as job:
        wait_until(lambda: maps(own, "outlives"))
        own.kill("nodemanager")
        own.restart("nodemanager")
        assert job.wait(120) == 0
    (application,) = own.yarn_applications("outlives")
    assert application["finalStatus"] == "SUCCEEDED"


@pytest.mark.chaos
def test_a_container_over_its_memory_is_ended(own: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "hog.py"
    script.write_text("import time\nkept = b'x' * (700 << 20)\ntime.sleep(60)\n")
    with submit(own, "hog", f"{sys.executable} {script}", tmp_path) as job:
        assert job.wait(120) != 0
    assert "beyond the 'PHYSICAL' memory limit" in own.log("nodemanager").read_text()


@pytest.mark.chaos
def test_containers_end_with_the_cluster_though_their_node_manager_was_killed(own: Cluster, tmp_path: Path) -> None:
    with submit(own, "left", "sleep 100", tmp_path) as job:
        wait_until(lambda: maps(own, "left"))
        own.kill("nodemanager")
        assert len(find_left(own.folder)) > len(DAEMONS), "its containers run on"
        own.stop()
        job.kill()
    assert find_left(own.folder) == []


@pytest.mark.chaos
@pytest.mark.parametrize("port", ["namenode", "datanode", "resourcemanager_web", "shuffle"])
def test_a_port_that_was_taken_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        choices = iter([free_ports() | {port: taken.getsockname()[1]}])
        monkeypatch.setattr(cluster_module, "free_ports", lambda: next(choices, None) or free_ports())
        with Cluster.start(tmp_path / "own", die_with_parent=True) as cluster:
            assert cluster.ports[port] != taken.getsockname()[1]
    assert next(choices, None) is None


@pytest.mark.chaos
def test_up_twice_and_down(tmp_path: Path) -> None:
    first, second = make(tmp_path, "up"), make(tmp_path, "up")
    try:
        assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
        assert second.stdout == f"already up\n{first.stdout}"
    finally:
        assert make(tmp_path, "down").returncode == 0
    assert make(tmp_path, "down").stdout == "not up\n"


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_the_tests_however_they_end(tmp_path: Path, number: signal.Signals) -> None:
    """A run of two workers is stopped while both use the cluster."""
    (tmp_path / "test_use.py").write_text(
        textwrap.dedent("""
        import pathlib, time, pytest
        from tests.hadoop.fixture import hadoop
        from tests.lib.run_folder import run_folder

        @pytest.mark.parametrize("number", [1, 2])
        def test_use(hadoop, number):
            pathlib.Path(__file__).with_name(f"used-{number}").write_text(str(hadoop.folder))
            time.sleep(120)
        """)
    )
    words = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "base")]
    log = (tmp_path / "log").open("w")
    with (
        log,
        subprocess.Popen(
            [*words, str(tmp_path)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=log
        ) as run,
    ):
        wait_until(lambda: len(list(tmp_path.glob("used-*"))) == 2, 120)
        cluster = Cluster.attach(Path((tmp_path / "used-1").read_text()))
        daemons = [Process.find(cluster.pid(daemon)) for daemon in DAEMONS]
        assert all(daemons)
        run.send_signal(number)
        wait_until(lambda: not any(daemon and daemon.lives for daemon in daemons), 60)

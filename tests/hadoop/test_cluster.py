"""The Hadoop that other tests use can be disturbed and ended like a real one, and leaves nothing."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.hadoop.cluster import DAEMONS, Cluster
from tests.hadoop.processes import Process
from tests.hadoop.state import find_left
from tests.lib.commands import REPOSITORY, Finished, run, succeeded
from tests.lib.ranks.running import started, wait_until


def hadoop_command(cluster: Cluster, *words: object) -> str:
    """What one of Hadoop's commands prints."""
    program = cluster.home / "bin" / "hadoop"
    return succeeded(run(program, *words, timeout_s=300, variables=cluster.environment())).stdout


def make(folder: Path, word: str) -> Finished:
    """Run `python -m tests.hadoop`, as make hadoop-up and the like do."""
    return run(sys.executable, "-m", "tests.hadoop", word, "--folder", folder, timeout_s=300)


@pytest.mark.chaos
def test_up_twice_and_down_with_all_containers(tmp_path: Path) -> None:
    """Although their NodeManager was killed."""
    folder = tmp_path / "own"
    try:
        first, second = (succeeded(make(folder, "up")).stdout for _ in range(2))
        assert second == f"already up\n{first}"
        own = Cluster.attach(folder)
        (tmp_path / "text").write_text("a line\n")
        hadoop_command(own, "fs", "-put", tmp_path / "text", "/tmp/text")
        jar = own.home / "share/hadoop/tools/lib/hadoop-streaming-3.4.2.jar"
        job = ("-input", "/tmp/text", "-output", "/tmp/out", "-mapper", "sleep 100")
        words = (own.home / "bin" / "hadoop", "jar", jar, "-D", "mapreduce.job.tags=left", *job)
        with started(*words, log=tmp_path / "log", **own.environment()) as running:
            # the application master and a task
            wait_until(lambda: any(each["runningContainers"] > 1 for each in own.yarn_applications("left")), running)
            own.kill("nodemanager")
            assert len(find_left(folder)) > len(DAEMONS), "its containers run on"
    finally:
        succeeded(make(folder, "down"))
    assert find_left(folder) == []
    assert make(folder, "down").stdout == "not up\n"


@pytest.mark.chaos
def test_it_ends_with_the_tests_however_they_end(tmp_path: Path) -> None:
    """A run of two workers is killed while both use the cluster."""
    (tmp_path / "test_use.py").write_text(
        textwrap.dedent("""
        import pathlib, time, pytest
        from tests.hadoop.fixture import hadoop
        from tests.lib.run_folder import run_folder

        @pytest.mark.parametrize("number", [1, 2])
        def test_use(hadoop, number):
            pathlib.Path(__file__).with_name(f"used-{number}").write_text(str(hadoop.folder))
            time.sleep(600)
        """)
    )
    words = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "base")]
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [*words, str(tmp_path)], cwd=tmp_path, env=variables, stdout=subprocess.DEVNULL, text=True
    ) as tests:
        wait_until(lambda: len(list(tmp_path.glob("used-*"))) == 2, tests)
        cluster = Cluster.attach(Path((tmp_path / "used-1").read_text()))
        daemons = [Process.find(cluster.pid(daemon)) for daemon in DAEMONS]
        assert all(daemons)
        tests.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(daemon and daemon.lives for daemon in daemons))

"""A Hadoop or an Airflow that cannot be set up fails once in a test run: tests that need it are errors at once."""

import fcntl
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.errors import EnvironmentFailure
from tests.airflow_dags import real_airflow
from tests.airflow_dags.real_airflow import Airflow
from tests.hadoop import cluster as cluster_module
from tests.hadoop import distribution
from tests.hadoop.cluster import DAEMONS, Cluster
from tests.hadoop.distribution import hadoop_home, locked
from tests.hadoop.fixture import join_or_start
from tests.hadoop.processes import Process
from tests.lib.commands import REPOSITORY, environment
from tests.lib.set_up_failures import FOLDER_VARIABLE, fail_once

NO_NETWORK = "[ERROR] Failed to execute goal: Could not transfer artifact"


class Commands:
    """Commands in place of the machine's: each notes that it was called, and fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.calls = folder / "calls"

    def add(self, name: str, error: str, status: int = 1) -> None:
        program = self.folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $1" >> {self.calls}\necho "{error}" >&2\nexit {status}\n')
        program.chmod(0o755)

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """First on the PATH, with a cache and a run's folder that are empty, and a JDK that is complete."""
    made = Commands(tmp_path)
    made.add("mvn", NO_NETWORK)
    (tmp_path / "jdk" / "include").mkdir(parents=True)
    (tmp_path / "jdk" / "include" / "jni.h").touch()
    (tmp_path / "jdk" / "bin").symlink_to(made.folder)
    made.add("java", "java was called")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    return made


def message(of: Callable[[], object]) -> str:
    """What ``of`` fails with, in one line."""
    with pytest.raises(EnvironmentFailure) as failed:
        of()
    assert "\n" not in str(failed.value)
    return str(failed.value)


@pytest.mark.integration
def test_maven_is_asked_once(commands: Commands) -> None:
    told = message(hadoop_home)
    assert "mvn failed" in told and NO_NETWORK in told and "Check the network" in told
    assert message(hadoop_home) == told
    assert commands.called == ["mvn -q"]


@pytest.mark.integration
def test_a_full_disk_is_told_as_such_and_without_colours(commands: Commands) -> None:
    commands.add("mvn", "\x1b[1m[ERROR]\x1b[0m Failed to execute goal: /cache/a.jar: No space left on device")
    told = message(hadoop_home)
    assert "mvn failed ([ERROR] Failed to execute goal: /cache/a.jar: No space left on device)" in told
    assert "Free space" in told and "network" not in told


def test_a_java_home_without_java_is_told_before_any_daemon_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though Hadoop itself is in the cache."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    monkeypatch.setattr(cluster_module, "hadoop_home", lambda: tmp_path)
    told = message(lambda: Cluster.start(tmp_path / "own"))
    assert told.startswith("JAVA_HOME /nonexistent has no bin/java. Set it to ")
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("cache", ["/proc/x", __file__])
def test_a_cache_that_cannot_be_made_is_told_with_its_variable(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    told = message(hadoop_home)
    assert re.match(rf"set-up of Hadoop \S+: nothing can be written to {cache}/ringslice \(", told)
    assert told.endswith("Set XDG_CACHE_HOME to a folder that can be written to")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("address", "reason"), [("file:///nowhere/sources-1.crate", "cannot be fetched"), ("", "has the SHA-256")]
)
def test_sources_that_cannot_be_had_are_one_line(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    commands.add("mvn", "", status=0)
    monkeypatch.setattr(distribution, "LIBHDFS_SOURCES", address or Path(__file__).as_uri())
    told = message(hadoop_home)
    assert reason in told
    assert message(hadoop_home) == told
    assert commands.called == ["mvn -q"]


@pytest.mark.integration
def test_outside_a_test_run_it_is_tried_again(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert message(hadoop_home) == message(hadoop_home)
    assert commands.called.count("mvn -q") == 2


@pytest.mark.integration
def test_a_cluster_is_started_once(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not tried again for the shared cluster, nor for one of a test's own."""
    home, folder = tmp_path / "home", tmp_path / "shared"
    for path in (folder, home / "name" / "current", home / "etc" / "hadoop"):
        path.mkdir(parents=True)
    (home / "name" / "current" / "VERSION").write_text("clusterID=CID-1\n")
    (home / "etc" / "hadoop" / "log4j.properties").touch()
    (home / "bin").symlink_to(commands.folder)
    for name in set(DAEMONS.values()):
        commands.add(name, "java.lang.UnsupportedClassVersionError: Exception in main")
    monkeypatch.setattr(cluster_module, "hadoop_home", lambda: home)
    told = message(lambda: join_or_start(folder, Process.this()))
    assert "UnsupportedClassVersionError" in told and str(folder / "logs") in told
    assert message(lambda: join_or_start(folder, Process.this())) == told
    assert message(lambda: Cluster.start(tmp_path / "own")) == told
    assert len(commands.called) <= len(DAEMONS)


INNER_CONFTEST = """
from tests.hadoop.fixture import hadoop, hadoop_undisturbed
from tests.lib.run_folder import pytest_runtest_setup, run_folder
"""

INNER_TESTS = """
import subprocess, sys
import pytest
from etl.errors import EnvironmentFailure
from tests.hadoop.cluster import Cluster

@pytest.mark.parametrize("number", range(40))
def test_error(hadoop_undisturbed, number):
    pass

@pytest.fixture
def made():
    print("another fixture was made")

@pytest.mark.hadoop
def test_last(made, hadoop_undisturbed):
    pass

def test_pass(tmp_path):
    words = [sys.executable, "-m", "tests.hadoop", "up", "--folder", str(tmp_path)]
    up = subprocess.run(words, capture_output=True, text=True)
    assert up.returncode == 3, up.stderr
    assert len(up.stderr.splitlines()) == 1 and "mvn failed" in up.stderr
    with pytest.raises(EnvironmentFailure, match="mvn failed"):
        Cluster.start(tmp_path)
"""


@pytest.mark.integration
def test_all_workers_of_a_run_fail_at_once(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also `python -m tests.hadoop up`, if a test starts it."""
    monkeypatch.delenv(FOLDER_VARIABLE)
    (tmp_path / "conftest.py").write_text(INNER_CONFTEST)
    (tmp_path / "test_inner.py").write_text(INNER_TESTS)
    options = ["-q", "-n", "2", "-p", "no:cacheprovider", "-o", "markers=hadoop", "--basetemp", str(tmp_path / "base")]
    kept = {name: value for name, value in environment().items() if not name.startswith("PYTEST_")}
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path,
        env=kept | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "1 passed, 41 errors" in finished.stdout, finished.stdout + finished.stderr
    assert commands.called == ["mvn -q"]
    assert len(re.findall(r"(?m)^\[gw[01]\] linux .*\nset-up of Hadoop .*: mvn failed \(.*$", finished.stdout)) == 41
    assert "another fixture was made" not in finished.stdout
    assert "fixture.py" not in finished.stdout, "a traceback"


@pytest.mark.integration
def test_airflow_migrates_once(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_airflow, "BIN", commands.folder)
    commands.add("airflow", "sqlite3.OperationalError: disk is full")

    def make(number: int) -> None:
        with fail_once("airflow"):
            Airflow(tmp_path / str(number)).make()

    told = message(lambda: make(1))
    assert "disk is full" in told and "make .venvs/airflow/.installed" in told
    assert message(lambda: make(2)) == told
    assert commands.called == ["airflow db"]


def test_airflow_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_airflow, "BIN", tmp_path)
    assert message(Airflow(tmp_path / "home").make).endswith("make .venvs/airflow/.installed")


def test_a_defect_is_raised_unchanged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ZeroDivisionError), fail_once("tool"):
        _ = 1 // 0
    with fail_once("another tool"):
        pass

    def again() -> None:
        with fail_once("tool"):
            pytest.fail("it was tried again")

    assert message(again).startswith("ZeroDivisionError: ")


def test_an_interrupted_set_up_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(KeyboardInterrupt), fail_once("tool"):
        raise KeyboardInterrupt
    with fail_once("tool"):
        pass


def test_nobody_waits_for_a_lock_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def wait() -> None:
            with locked(path, timeout_s=0.1):
                pass

        assert f"fuser {path}" in message(wait)
    with locked(path, shared=True, timeout_s=0), locked(path, shared=True, timeout_s=0):
        pass

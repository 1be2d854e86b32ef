"""``ringslice doctor``: what works is reported as ok, what is broken by a line of its own; nothing is left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from etl.doctor.check import run
from etl.errors import EnvironmentFailure
from etl.storage.place import Place
from tests.hadoop.cluster import Cluster
from tests.hadoop.configuration import write_site
from tests.hadoop.processes import Process
from tests.lib.commands import BIN, Finished, environment, ringslice, succeeded, wait_until
from tests.lib.in_process import ringslice_here

CLOSED_PORT = 1
NVIDIA_SMI = """#!/bin/sh
for number in 0 1; do echo "NVIDIA H200, 143771 MiB, 570.86.15"; done
"""
CRASHING = "void __attribute__((constructor)) crash(void) { *(volatile int *)0 = 1; }"


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of Hadoop are left out of all tests; see `forget_caller`."""
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """The settings of a site whose servers are down, with a Hadoop home that is empty."""
    configuration, home = tmp_path / "conf", tmp_path / "home"
    configuration.mkdir()
    home.mkdir()
    address = f"127.0.0.1:{CLOSED_PORT}"
    write_site(configuration / "core-site.xml", {"fs.defaultFS": f"hdfs://{address}"})
    write_site(configuration / "yarn-site.xml", {"yarn.resourcemanager.webapp.address": address})
    return {"HADOOP_CONF_DIR": str(configuration), "HADOOP_HOME": str(home)}


def diagnosed(status: int, *words: object, **more: Any) -> dict[str, tuple[str, str]]:
    """State and text of each check, by its name, of a doctor in this process that ends with ``status``."""
    return findings(status, ringslice_here("doctor", "--json", *words, **more))


def findings(status: int, finished: Finished) -> dict[str, tuple[str, str]]:
    assert finished.returncode == status, f"{finished.stdout}\n{finished.stderr}"
    assert finished.stderr == ""
    answer = json.loads(finished.stdout)
    assert answer["healthy"] == (status == 0)
    return {each["check"]: (each["state"], each["text"]) for each in answer["checks"]}


def failures(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {name: text for name, (state, text) in found.items() if state == "fails"}


@pytest.mark.integration
def test_a_machine_without_hadoop_is_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a GPU, whose driver's program a script stands in for."""
    program, place = tmp_path / "bin" / "nvidia-smi", tmp_path / "place"
    place.mkdir()
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    finished = succeeded(ringslice("doctor", place / "a" / "b"))
    *lines, last = finished.stdout.splitlines()
    found = {line.split(": ")[1]: line for line in lines}
    states = {name: line.split()[0] for name, line in found.items()}
    assert last == "nothing fails"
    assert {states[name] for name in ("version", "packages", "files", "Horovod", "native op")} == {"ok"}
    assert {states[name] for name in ("configuration", "ResourceManager", "streaming jar")} == {"note"}
    assert found["ResourceManager"].endswith("not set up; only needed for -r hadoop")
    assert "2 of NVIDIA H200, 143771 MiB, 570.86.15; Horovod is built without NCCL" in found["GPUs"]
    assert finished.stderr == ""
    assert os.listdir(place) == []


@pytest.mark.integration
def test_wrong_settings(site: dict[str, str], tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    found = diagnosed(3, "--only", "hadoop", JAVA_HOME=str(absent), **site)
    assert f"JAVA_HOME {absent} has no bin/java" in failures(found)["Java"]
    assert "no hadoop program" in failures(found)["hadoop program"]
    (tmp_path / "file").touch()
    found = diagnosed(3, "--only", "storage", tmp_path / "file" / "below")
    assert f"{tmp_path}/file is a file; give a folder" in failures(found)["files"]
    (tmp_path / "conf" / "core-site.xml").write_text("<configuration>")
    found = diagnosed(3, "--only", "hadoop", "--only", "storage", "hdfs:///x", **site)
    assert "core-site.xml is not XML" in failures(found)["configuration"]


@pytest.mark.integration
def test_services_that_are_down(site: dict[str, str]) -> None:
    found = diagnosed(3, "--only", "storage", "--only", "yarn", "hdfs:///x", **site)
    assert f"127.0.0.1:{CLOSED_PORT} does not answer (Connection refused)" in failures(found)["NameNode"]
    assert "does not answer" in failures(found)["ResourceManager"]
    assert "files" not in found
    by_address = ("--only", "hadoop", "--only", "storage", f"hdfs://127.0.0.1:{CLOSED_PORT}/x")
    without_java = {"PATH": str(BIN)}
    assert failures(diagnosed(3, *by_address, **without_java)).keys() == {"NameNode"}, "needs no Java"
    assert "Java" in failures(diagnosed(3, *by_address, "--hdfs-driver", "libhdfs", **without_java))


@pytest.mark.integration
def test_a_libhdfs_that_crashes_takes_nobody_down(tmp_path: Path) -> None:
    """What listens in place of a NameNode answers nothing."""
    library, source, jar = tmp_path / "libhdfs.so", tmp_path / "crash.c", tmp_path / "hadoop-common-0.jar"
    source.write_text(CRASHING)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    jar.touch()
    with socket.create_server(("127.0.0.1", 0)) as namenode:
        place = f"hdfs://127.0.0.1:{namenode.getsockname()[1]}/x"
        words = ("doctor", "--json", "--only", "storage", place, "--hdfs-driver", "libhdfs")
        found = findings(3, ringslice(*words, ARROW_LIBHDFS_DIR=str(tmp_path), CLASSPATH=str(jar)))
    assert "crashed (SIGSEGV)" in failures(found)["files"]
    assert "take --hdfs-driver native" in failures(found)["files"]


@pytest.mark.integration
def test_a_python_of_the_nodes_own() -> None:
    found = diagnosed(0, "--only", "tasks", "--python-bin", sys.executable)
    assert "imports the jobs" in found["imports"][1]
    base = os.path.realpath(sys.executable)
    found = diagnosed(3, "--only", "tasks", "--python-bin", base)
    assert "failed (ModuleNotFoundError" in failures(found)["imports"]


@pytest.mark.integration
def test_a_child_that_hangs_is_stopped_with_its_own(tmp_path: Path) -> None:
    file = tmp_path / "child"
    with pytest.raises(EnvironmentFailure, match="did not end within 2 s; look at it"):
        run(["sh", "-c", f"sleep 600 & echo $! > {file}; wait"], 2, "look at it")
    wait_until(lambda: Process.find(int(file.read_text())) is None)


def test_a_hadoop_cluster_is_healthy(hadoop: Cluster, hdfs: Place) -> None:
    doctor, place, site = ("doctor", "--json"), hdfs / "a/b", hadoop.environment()
    groups = ("--only", "hadoop", "--only", "storage", "--only", "yarn")
    found = findings(0, ringslice(*doctor, place, "--queue", "default", *groups, **site))
    assert {state for state, _ in found.values()} == {"ok"}
    assert {"NameNode", "files", "queues", "streaming jar"} <= found.keys()
    found = findings(0, ringslice(*doctor, place, "--only", "storage", "--hdfs-driver", "libhdfs", **site))
    assert {state for state, _ in found.values()} == {"ok"}
    assert not hdfs.children()
    found = findings(3, ringslice(*doctor, "--only", "yarn", "--queue", "missing", **site))
    assert "--queue 'missing' does not exist at http://" in failures(found)["queues"]


@pytest.mark.parametrize("stopped", ["doctor", "probe"])
def test_nothing_is_left_on_hdfs_when_stopped(hadoop: Cluster, hdfs: Place, stopped: str) -> None:
    words = ["ringslice", "doctor", "--json", "--only", "storage", hdfs.uri]
    more = environment(**hadoop.environment())
    for _ in range(10):
        doctor = subprocess.Popen(words, env=more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not hdfs.children() and doctor.poll() is None:
            time.sleep(0.001)
        probes = Path(f"/proc/{doctor.pid}/task/{doctor.pid}/children")
        if doctor.poll() is None and (children := probes.read_text().split()):
            os.kill(*((doctor.pid, signal.SIGINT) if stopped == "doctor" else (int(children[0]), signal.SIGKILL)))
        output, errors = doctor.communicate(timeout=600)
        assert not hdfs.children()
        if doctor.returncode != 0:
            break
    assert doctor.returncode == (130 if stopped == "doctor" else 3), output
    assert "interrupted" in errors or "crashed (SIGKILL)" in output

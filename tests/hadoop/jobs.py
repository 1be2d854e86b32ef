"""A stage at work on a cluster, to be disturbed: its driver, its containers, and proofs that a kill hit."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from tests.hadoop.cluster import Cluster
from tests.hadoop.processes import Process, find_all
from tests.hadoop.state import MARK
from tests.lib.commands import PATIENCE_S, REPOSITORY, environment

WAIT_S = 600.0  # the first job of a home makes the Python of its tasks before, on a machine that has other work, too
POLL_S = 0.02


class JobRun:
    """One start of a stage's command with ``-r hadoop``, in a session of its own. None outlives its test."""

    all: ClassVar[list["JobRun"]] = []
    later_s = 0.0

    def __init__(self, cluster: Cluster, log: Path, *words: object) -> None:
        self.cluster = cluster
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [str(word) for word in words],
                cwd=REPOSITORY,
                env=environment(**cluster.environment()),
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=output,
            )
        self.all.append(self)

    def told(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(WAIT_S)

    def wait_for(self, what: str, found: Callable[[], list[Process]]) -> Process:
        """The first process that ``found`` finds."""
        processes: list[Process] = []

        def look() -> bool:
            processes.extend(found())
            return bool(processes)

        self.wait_until(what, look)
        return processes[0]

    def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert self.process.poll() is None, f"it ended before there was {what}: {self.told()}"
            assert time.monotonic() < deadline, f"no {what}: {self.told()}"
            time.sleep(POLL_S)

    def mapper(self) -> Process:
        return self._task("--mapper")

    def reducer(self) -> Process:
        return self._task("--reducer")

    def _task(self, kind: str) -> Process:
        """A task of this kind, so long after it began as ``later_s`` says."""
        found = self.wait_for(f"a {kind}", lambda: tasks(self.cluster, kind))
        time.sleep(self.later_s)
        return found

    def master(self) -> Process:
        return self.wait_for("an application master", lambda: masters(self.cluster))

    def kill_driver(self) -> None:
        """Kill -9 of the command with all its processes on this side: nobody tells the cluster."""
        os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.wait(PATIENCE_S) == -signal.SIGKILL


def tasks(cluster: Cluster, kind: str) -> list[Process]:
    """The Python processes of the cluster's containers that are mappers or reducers."""
    return _containers(cluster, lambda words: words[0].endswith(b"python") and kind.encode() in words)


def attempt_of(task: Process) -> str:
    """The attempt that a task's Python works for, as Hadoop's streaming tells it."""
    variables = Path(f"/proc/{task.pid}/environ").read_bytes().split(b"\0")
    name = b"mapreduce_task_attempt_id="
    return next(each.removeprefix(name).decode() for each in variables if each.startswith(name))


def masters(cluster: Cluster) -> list[Process]:
    main = b"org.apache.hadoop.mapreduce.v2.app.MRAppMaster"
    return _containers(cluster, lambda words: words[0].endswith(b"java") and main in words)


def _containers(cluster: Cluster, holds: Callable[[list[bytes]], bool]) -> list[Process]:
    mark = f"{MARK}={cluster.folder}".encode()
    return find_all(lambda words, variables: holds(words) and mark in variables)

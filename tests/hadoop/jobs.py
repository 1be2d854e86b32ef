"""A stage at work on a cluster, to be disturbed: its driver, its containers, and proofs that a kill hit."""

import signal
from collections.abc import Callable
from pathlib import Path

from tests.hadoop.cluster import Cluster
from tests.hadoop.processes import Process, find_all
from tests.hadoop.state import MARK
from tests.lib.session import Session

WAIT_S = 600.0  # the first job of a home makes the Python of its tasks before, on a machine that has other work, too


class JobRun(Session):
    """One start of a stage's command with ``-r hadoop``."""

    timeout_s = WAIT_S

    def __init__(self, cluster: Cluster, log: Path, *words: object) -> None:
        super().__init__(log, *words, **cluster.environment())
        self.cluster = cluster

    def wait_for(self, what: str, found: Callable[[], list[Process]]) -> Process:
        """The first process that ``found`` finds."""
        return self.wait_until(what, found)[0]

    def mapper(self) -> Process:
        return self.wait_for("a mapper", lambda: tasks(self.cluster, "--mapper"))

    def reducer(self) -> Process:
        return self.wait_for("a reducer", lambda: tasks(self.cluster, "--reducer"))

    def master(self) -> Process:
        return self.wait_for("an application master", lambda: masters(self.cluster))

    def kill_driver(self) -> None:
        """Kill -9 of the command with all its processes on this side: the cluster is not informed."""
        self.send_all(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL


def tasks(cluster: Cluster, kind: str) -> list[Process]:
    """The Python processes of the cluster's containers that are mappers or reducers."""
    return _containers(cluster, lambda words: words[0].endswith(b"python") and kind.encode() in words)


def attempt_of(task: Process) -> str:
    """The attempt of a task's Python, by the variable that Hadoop's streaming sets."""
    variables = Path(f"/proc/{task.pid}/environ").read_bytes().split(b"\0")
    name = b"mapreduce_task_attempt_id="
    return next(each.removeprefix(name).decode() for each in variables if each.startswith(name))


def masters(cluster: Cluster) -> list[Process]:
    main = b"org.apache.hadoop.mapreduce.v2.app.MRAppMaster"
    return _containers(cluster, lambda words: words[0].endswith(b"java") and main in words)


def _containers(cluster: Cluster, is_wanted: Callable[[list[bytes]], bool]) -> list[Process]:
    mark = f"{MARK}={cluster.folder}".encode()
    return find_all(lambda words, variables: is_wanted(words) and mark in variables)

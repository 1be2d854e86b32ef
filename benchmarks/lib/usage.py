"""Wall time, processor time, and peak memory by kind of process, of a command on this machine."""

import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lib.failure import Failure
from lib.memory import TaskPeaks, children_of
from lib.processes import command_failure, environment

POLL_INTERVAL_S = 0.05
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """Seconds, and bytes by kind of process.

    ``own_s`` is the processor time of the command and of all its children that ended; ``containers_s`` that of the
    cluster's containers with all processes in them.
    """

    wall_s: float = 0.0
    own_s: float = 0.0
    containers_s: float = 0.0
    peaks: dict[str, int] = field(default_factory=dict)

    @property
    def processor_s(self) -> float:
        return self.own_s + self.containers_s


def measure(
    words: Sequence[object], kinds: Mapping[str, str], mark: str, variables: Mapping[str, str] | None = None
) -> Usage:
    """Run a command to its end. ``kinds`` and ``mark`` are those of `TaskPeaks`. Raises Failure."""
    usage = Usage()
    node_manager = find_node_manager()
    before = _ticks_of_children(node_manager) if node_manager else 0
    own = _children_s()
    started = time.monotonic()
    with TaskPeaks(kinds, mark) as tasks:
        command = [str(word) for word in words]
        status = subprocess.run(command, env=variables or environment(), stdout=subprocess.DEVNULL).returncode
        usage.wall_s = time.monotonic() - started
    if status:
        raise command_failure(command, status)
    usage.peaks = tasks.peaks
    usage.own_s = _children_s() - own
    if node_manager:
        _wait_for_containers(node_manager)
        usage.containers_s = (_ticks_of_children(node_manager) - before) / TICKS_PER_S
    return usage


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def find_node_manager() -> int | None:
    """Process id of the NodeManager on this machine that ``$HADOOP_CONF_DIR`` configures."""
    wanted = f"HADOOP_CONF_DIR={os.environ.get('HADOOP_CONF_DIR')}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_node_manager = len(words) > 1 and words[-2].endswith(b".NodeManager")  # a Java main class
            if is_node_manager and wanted in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:  # it has ended
            continue
    return None


def _ticks_of_children(pid: int) -> int:
    """Processor time of a process's children that ended, with theirs: proc(5), in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[13]) + int(fields[14])


def _wait_for_containers(node_manager: int, timeout_s: float = 60.0) -> None:
    """Wait until no container runs, because the NodeManager has their processor time only then."""
    deadline = time.monotonic() + timeout_s
    while children_of(node_manager):
        if time.monotonic() > deadline:
            reason = f"a container of it still runs after {timeout_s:.0f} s"
            raise Failure("NodeManager", f"process {node_manager}", reason, "Wait until no other job runs")
        time.sleep(POLL_INTERVAL_S)

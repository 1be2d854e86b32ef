"""What a command costs on this machine: wall time, processor time, and the peak memory of its kinds of processes."""

import os
import resource
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SAMPLE_INTERVAL_S = 0.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DAEMONS = {"DataNode": "datanode", "NodeManager": "nodemanager"}  # by the last dot of a Java main class


@dataclass
class Usage:
    """Seconds, and bytes by kind of process.

    ``own_s`` is the processor time of the command and of all its children that ended; ``containers_s`` that of the
    cluster's containers, all processes in them; ``daemons_s`` that of the DataNode and the NodeManager themselves.
    """

    wall_s: float = 0.0
    own_s: float = 0.0
    containers_s: float = 0.0
    daemons_s: float = 0.0
    peaks: dict[str, int] = field(default_factory=dict)

    @property
    def processor_s(self) -> float:
        return self.own_s + self.containers_s


def measure(words: Sequence[object], kinds: Mapping[str, str], mark: str) -> Usage:
    """Run a command to its end. ``kinds`` and ``mark`` are those of a `Sampler`."""
    usage = Usage()
    daemons = find_daemons()
    before = [_ticks(pid) for pid in daemons.values()]
    own = _children_s()
    started = time.monotonic()
    with sampling(kinds, mark) as usage.peaks:
        subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)
        usage.wall_s = time.monotonic() - started
    usage.own_s = _children_s() - own
    if daemons:
        _wait_for_containers(daemons["nodemanager"])
        after = [_ticks(pid) for pid in daemons.values()]
        usage.daemons_s = sum(b[0] - a[0] for a, b in zip(before, after, strict=True)) / TICKS_PER_S
        usage.containers_s = sum(b[1] - a[1] for a, b in zip(before, after, strict=True)) / TICKS_PER_S
    return usage


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def find_daemons() -> dict[str, int]:
    """Process ids of the DataNode and the NodeManager that ``$HADOOP_CONF_DIR`` configures and that run here."""
    wanted = f"HADOOP_CONF_DIR={os.environ.get('HADOOP_CONF_DIR')}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            name = DAEMONS.get(words[-2].decode().rpartition(".")[2]) if len(words) > 1 else None
            if name and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[name] = int(entry.name)
        except OSError:  # ended meanwhile
            continue
    return found


def _ticks(pid: int) -> tuple[int, int]:
    """Processor time of a process itself, and of its children that ended, with theirs: proc(5), in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])


def _wait_for_containers(node_manager: int, timeout_s: float = 60.0) -> None:
    """Wait until no container runs, for only then the NodeManager has their processor time."""
    deadline = time.monotonic() + timeout_s
    while _children(node_manager):
        if time.monotonic() > deadline:
            raise SystemExit("a container does not end; is another job running on the cluster?")
        time.sleep(SAMPLE_INTERVAL_S)


def _children(pid: int) -> str:
    """All threads' children: a JVM starts processes from any thread of its own."""
    return "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))


@contextmanager
def sampling(kinds: Mapping[str, str], mark: str) -> Iterator[dict[str, int]]:
    """The peaks of a `Sampler` that runs during the block."""
    sampler = Sampler(kinds, mark)
    sampler.start()
    try:
        yield sampler.peaks
    finally:
        sampler.stop()


class Sampler(threading.Thread):
    """Samples resident sets until it is stopped; ``peaks`` are bytes by kind of task.

    A process whose command line holds a word of ``kinds`` (the first that fits), and ``mark`` somewhere, is of that
    word's kind; in a YARN container its Python and its JVM are summed up.
    """

    def __init__(self, kinds: Mapping[str, str], mark: str = "") -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, int] = defaultdict(int)
        self._kinds = {word.encode(): kind for word, kind in kinds.items()}
        self._mark = mark.encode()
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(SAMPLE_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        sizes: dict[str, int] = defaultdict(int)
        found: dict[str, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes()
                words = line.split(b"\0")
                if not words[0].rpartition(b"/")[2].startswith((b"python", b"java")):
                    continue
                task = _task_of(entry)
                sizes[task] += int((entry / "statm").read_text().split()[1]) * PAGE_BYTES
            except (OSError, IndexError):  # ended meanwhile
                continue
            kind = next((kind for word, kind in self._kinds.items() if word in words), None)
            if kind and self._mark in line:
                found[task] = kind
        for task, kind in found.items():
            self.peaks[kind] = max(self.peaks[kind], sizes[task])

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _task_of(entry: Path) -> str:
    """What a process belongs to: its container, else itself."""
    for each in (entry / "environ").read_bytes().split(b"\0"):
        if each.startswith(b"CONTAINER_ID="):
            return each.decode()
    return entry.name

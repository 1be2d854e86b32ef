"""Peak memory: of this process, and of each kind of task."""

import os
import re
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Self

TASK_INTERVAL_S = 0.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def own_memory(name: str) -> int:
    """A size of this process in bytes, by its name in proc(5): VmRSS, or VmHWM for the peak."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def children_of(pid: int | str) -> list[int]:
    """The children of all threads of a process: a JVM starts processes from any of its threads."""
    return [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]


class Background(threading.Thread):
    """A thread that runs while the block does. Override `run` and end it when ``stopping`` is set."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join()


class TaskPeaks(Background):
    """``peaks`` are the largest resident sets in bytes, by kind of task.

    A process is of the kind of the first of ``kinds`` that is an argument of its command line, if ``mark`` is in that
    line, too. In a YARN container the sizes of its Python and its JVM are added up.
    """

    def __init__(self, kinds: Mapping[str, str], mark: str = "") -> None:
        super().__init__()
        self.peaks: dict[str, int] = defaultdict(int)
        self._kinds = {word.encode(): kind for word, kind in kinds.items()}
        self._mark = mark.encode()

    def run(self) -> None:
        while not self.stopping.wait(TASK_INTERVAL_S):
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
            except (OSError, IndexError):  # it has ended
                continue
            kind = next((kind for word, kind in self._kinds.items() if word in words), None)
            if kind and self._mark in line:
                found[task] = kind
        for task, kind in found.items():
            self.peaks[kind] = max(self.peaks[kind], sizes[task])


def _task_of(entry: Path) -> str:
    """The container of a process, or the process itself if it is in none."""
    for each in (entry / "environ").read_bytes().split(b"\0"):
        if each.startswith(b"CONTAINER_ID="):
            return each.decode()
    return entry.name

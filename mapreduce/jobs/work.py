"""What a stage has its tasks do, and how far they are."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from etl.errors import EnvironmentFailure
from etl.progress import Progress

JOB_FILE = "job.json"
POLL_INTERVAL_S = 0.5


@dataclass(frozen=True)
class TaskSize:
    """What makes a task worth the seconds that it takes to start, with its container's JVM where it has one."""

    size_bytes: int
    images: int


DECODING = TaskSize(64 << 20, 20_000)


def worthwhile_tasks(size_bytes: int, images: int, task: TaskSize = DECODING) -> int:
    """Into how many tasks so much work is cut."""
    return max(1, round(size_bytes / task.size_bytes + images / task.images))


class Lines(Protocol):
    """The lines of a work list: their number is known, and they may be made only when asked for."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...


@dataclass(frozen=True)
class Work:
    """``job`` goes to all tasks, each of ``lines`` to one, ``tasks`` is how many of them a cluster is worth asking for.

    ``helper_bytes`` is what a helper process of a mapper may take, beside the mapper itself.
    ``watch`` tells how many of ``total`` images are in published files by now, and what else there is to tell.
    """

    job: dict[str, Any]
    lines: Lines
    tasks: int
    total: int
    watch: Callable[[], tuple[int, str]]
    helper_bytes: int = 0


@contextmanager
def showing_progress(work: Work, note: Callable[[], str] = str) -> Iterator[None]:
    """Show how many images are in published files, and ``note``, while the block runs."""
    stopped = threading.Event()
    with Progress(work.job["stage"], work.total, "images") as progress:
        progress.skip(work.watch()[0])

        def look() -> None:
            with suppress(OSError, EnvironmentFailure):  # who reads or writes next will tell
                done, more = work.watch()
                progress.update(done, ", ".join(filter(None, (more, note()))))

        def poll() -> None:
            while not stopped.wait(POLL_INTERVAL_S):
                look()

        thread = threading.Thread(target=poll, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(POLL_INTERVAL_S)  # a daemon; storage may hold it up
            look()

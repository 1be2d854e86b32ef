"""Read slices in one way: once to warm up, then once for each variant, timed.

Imports none of the project's packages, because it runs in the environment of tensorflow-io, too.
"""

import dataclasses
import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    """What is read, and how. ``function`` is ``module:name``; it takes the job and returns how many examples it read.

    ``folder`` is the URI of the manifest's folder; ``files`` are those of its training slices, which contain so many
    ``examples``. They are read ``passes`` times. Each of ``variants`` replaces some of these fields for one timed pass.
    Before each pass the first ``warm_up`` files are read in the same way, which opens connections, starts threads,
    allocates memory and lets a JVM compile. With ``core`` the process stays on that core.
    """

    function: str
    folder: str
    files: list[str]
    examples: int
    at_once: int = 1
    buffer_bytes: int | None = None
    batch: int = 256
    passes: int = 1
    warm_up: int = 1
    side: int | None = None
    core: int | None = None
    variants: list[dict[str, Any]] = field(default_factory=lambda: [{}])

    @property
    def all_files(self) -> list[str]:
        return self.files * self.passes


def run(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Do the job that has these fields; yield the figures of each of its variants."""
    job = Job(**fields)
    if job.core is not None:
        os.sched_setaffinity(0, {job.core})
    module, _, name = job.function.partition(":")
    read: Callable[[Job], int] = getattr(importlib.import_module(module), name)
    for variant in job.variants:
        read(dataclasses.replace(job, **variant, files=job.files[: job.warm_up], passes=1))
        wall, busy = time.perf_counter(), time.process_time()
        examples = read(dataclasses.replace(job, **variant))
        seconds = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - busy}
        yield {"variant": variant, "examples": examples, **seconds}

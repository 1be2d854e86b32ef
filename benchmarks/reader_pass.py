"""One way of reading in a process of its own: reads to warm up, then once for each variant, timed.

Imports nothing of ours, for it runs in the environment of tensorflow-io too.
"""

import dataclasses
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    """What is read, and how. ``function`` is ``module:name``; it takes the job and tells how many examples it read.

    ``folder`` is the URI of the manifest's folder; ``files`` those of its training slices, which hold so many
    ``examples``. They are read ``passes`` times over. Each of ``variants`` replaces some of these fields for one timed
    pass. Before each, the first ``warm_up`` files are read in the same way: for connections, thread pools, memory, and
    a JVM that compiles. With ``core`` the process stays on that core.
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


def main() -> None:
    """Run the job that is given as JSON; print a line of JSON for each of its variants."""
    job = Job(**json.loads(sys.argv[1]))
    if job.core is not None:
        os.sched_setaffinity(0, {job.core})
    module, _, name = job.function.partition(":")
    read: Callable[[Job], int] = getattr(importlib.import_module(module), name)
    for variant in job.variants:
        read(dataclasses.replace(job, **variant, files=job.files[: job.warm_up], passes=1))
        wall, busy = time.perf_counter(), time.process_time()
        examples = read(dataclasses.replace(job, **variant))
        told = {"examples": examples, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - busy}
        print(json.dumps({"variant": variant, **told}), flush=True)
    os._exit(0)  # a JVM's threads and Arrow's may not end by themselves


if __name__ == "__main__":
    main()

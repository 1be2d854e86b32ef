"""A stage's tasks on this machine, by mrjob's inline and local runners: in this process, or one process per core."""

import logging
import math
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from mrjob.local import LocalMRJobRunner
from mrjob.step import StepFailedException

from etl.errors import DataError, EnvironmentFailure, RingsliceError, UsageError
from etl.processes import end_with_parent

DRIVER_PID = "RINGSLICE_DRIVER_PID"
# What a task's Python is told: no threads for linear algebra, of which there is none; free memory is kept for the next
# buffer, as giving it back and faulting it in again takes half of the time of reading from HDFS; and mrjob's distutils
# are Python's own, where it has them.
TASK_VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    **({"SETUPTOOLS_USE_DISTUTILS": "stdlib"} if sys.version_info < (3, 12) else {}),
}


class LocalRunner(LocalMRJobRunner):
    """mrjob's local runner, which cuts each step into two tasks for each core, or into fewer where the job says so."""

    mappers: int | None = None
    reducers: int | None = None

    def _num_mappers(self, step_num: int) -> float:
        return self._half_of(self.mappers)

    def _num_reducers(self, step_num: int) -> float:
        return self._half_of(self.reducers)

    def _half_of(self, tasks: int | None) -> float:
        return min(self._num_cores(), tasks / 2 if tasks else math.inf)  # mrjob takes twice as many


def run_here(job: Any) -> dict[str, Any]:
    """Run the mrjob ``job`` to its end; returns what ``run.json`` keeps of it.

    Raises what a task raised, as far as its output tells.
    """
    if job.options.runner == "local":
        os.environ[DRIVER_PID] = str(os.getpid())
        os.environ.update(TASK_VARIABLES)
    with _first_failure() as failure, job.make_runner() as runner:
        runner.mappers, runner.reducers = job.job.get("mappers"), job.job.get("reducers")
        try:
            runner.run()
        except StepFailedException as error:
            failure.raise_for(error)
        return {"counters": runner.counters()[0]}


class _Failure(logging.Handler):
    """Collects what mrjob logs, which holds the standard error of the task that failed."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def raise_for(self, error: StepFailedException) -> NoReturn:
        """Raise what the task itself raised, as far as its output tells."""
        text = "\n".join(self.messages)
        line = re.search(r"^ringslice: error: (.*)$", text, re.MULTILINE)
        status = re.search(r"exit status (\d+)", str(error))
        if killed := re.search(r"died with <Signals\.(\w+)", str(error)):
            out_of_memory = " (out of memory? use smaller packs or --num-cores 1)" if killed[1] == "SIGKILL" else ""
            raise EnvironmentFailure(f"a task was ended by {killed[1]}{out_of_memory}; run again to go on") from None
        if line is None or status is None:
            raise EnvironmentFailure(f"a task ended without a word ({error}); what it wrote:\n{text}") from None
        kinds: dict[str, type[RingsliceError]] = {"1": DataError, "2": UsageError, "3": EnvironmentFailure}
        if status[1] not in kinds:
            raise KeyboardInterrupt from None
        raise kinds[status[1]](line[1]) from None


@contextmanager
def _first_failure() -> Iterator[_Failure]:
    log, handler = logging.getLogger("mrjob"), _Failure()
    log.addHandler(handler)
    propagated, log.propagate = log.propagate, False
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.propagate = propagated


def end_with_driver(driver_pid: int) -> None:
    """Have this task end (by SIGTERM) when its parent does, a worker that mrjob's local runner forked from the driver.

    Raises KeyboardInterrupt where the parent is gone already.
    """
    end_with_parent(signal.SIGTERM)
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    if int(status.rpartition(")")[2].split()[1]) != driver_pid:  # its fourth field: the parent's parent (proc(5))
        raise KeyboardInterrupt

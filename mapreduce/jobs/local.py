"""A stage's tasks on this machine, by mrjob's inline and local runners: in this process, or one process per core."""

import logging
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, NoReturn

from mrjob.local import LocalMRJobRunner, _TaskFailedException
from mrjob.step import StepFailedException

from etl.errors import ERRORS, EnvironmentFailure
from etl.processes import stop_all, tied_environment

POLL_INTERVAL_S = 0.02
STOP_TIMEOUT_S = 5.0  # for tasks that were told to stop; then they are killed
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
    """mrjob's local runner, but this thread starts the tasks' processes and waits for them.

    It cuts each step into two tasks for each core, or into fewer if the job says so. mrjob's own runner forks a
    `multiprocessing.Pool`, which may wait for ever for a worker that a signal did not end (python/cpython#96995).
    """

    mappers: int | None = None
    reducers: int | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._tasks: dict[subprocess.Popen[bytes], dict[str, Any]] = {}  # those that run

    def _num_mappers(self, step_num: int) -> float:
        return self._half_of(self.mappers)

    def _num_reducers(self, step_num: int) -> float:
        return self._half_of(self.reducers)

    def _half_of(self, tasks: int | None) -> float:
        return min(self._num_cores(), tasks / 2 if tasks else math.inf)  # mrjob takes twice as many

    def _sort_input_func(self) -> Callable[..., None]:
        """With the order of values also in memory, where mrjob sorts if `sort` is missing or fails (a full disk)."""
        return partial(super()._sort_input_func(), sort_values=self._sort_values)

    def _invoke_task_func(self, task_type: str, step_num: int, task_num: int) -> Callable[..., None]:
        words = self._substep_args(step_num, task_type)
        place = {"step_num": step_num, "num_steps": self._num_steps(), "task_type": task_type, "task_num": task_num}

        def start(stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes], wd: str, env: Mapping[str, str]) -> None:
            env = tied_environment(signal.SIGTERM, {**TASK_VARIABLES, **env})
            self._tasks[subprocess.Popen(words, stdin=stdin, stdout=stdout, stderr=stderr, cwd=wd, env=env)] = place

        return start

    def _run_multiple(self, funcs: Iterable[Callable[[], None]], num_processes: int | None = None) -> None:
        """Run tasks to their end, as many at once as there are cores; ``funcs`` start them.

        Raises _TaskFailedException for the first that fails; none is left then, nor after an interrupt.
        """
        del num_processes
        try:
            for start in funcs:
                while len(self._tasks) >= self._num_cores():
                    self._wait_for_some()
                start()
            while self._tasks:
                self._wait_for_some()
        finally:
            stop_all(list(self._tasks), signal.SIGTERM, STOP_TIMEOUT_S)
            self._tasks.clear()

    def _wait_for_some(self) -> None:
        time.sleep(POLL_INTERVAL_S)
        for task in [each for each in self._tasks if each.poll() is not None]:
            place = self._tasks.pop(task)
            if task.returncode:
                raise _TaskFailedException(
                    reason=str(subprocess.CalledProcessError(task.returncode, task.args)), **place
                )


def run_here(job: Any) -> dict[str, Any]:
    """Run the mrjob ``job`` to its end; returns what ``run.json`` keeps of it.

    Raises what a task raised, as far as its output tells.
    """
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
            raise EnvironmentFailure(f"a task ended without an error message ({error}); its output:\n{text}") from None
        if int(status[1]) not in ERRORS:
            raise KeyboardInterrupt from None
        raise ERRORS[int(status[1])](line[1]) from None


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

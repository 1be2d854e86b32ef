"""A stage's tasks on this machine, by mrjob's inline and local runners: in this process, or one process per core."""

import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, Any, NoReturn

from mrjob.local import LocalMRJobRunner, _TaskFailedException
from mrjob.sim import _sort_lines_in_memory
from mrjob.step import StepFailedException

from etl.errors import DataError, EnvironmentFailure, RingsliceError, UsageError
from etl.processes import end_with_parent, stop_all, tied_environment

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
        variables = {"LC_ALL": "C", "TMPDIR": self._get_local_tmp_dir()}
        return partial(sort_files, self._sort_bin(), variables, sort_values=self._sort_values)

    def _invoke_task_func(self, task_type: str, step_num: int, task_num: int) -> Callable[..., None]:
        words = self._substep_args(step_num, task_type)
        place = {"step_num": step_num, "num_steps": self._num_steps(), "task_type": task_type, "task_num": task_num}

        def start(stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes], wd: str, env: Mapping[str, str]) -> None:
            # SIGKILL: it also ends a task that is stopped; what it leaves is deleted by whoever takes the stage over
            env = tied_environment(signal.SIGKILL, {**TASK_VARIABLES, **env})
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


def sort_files(
    words: Sequence[str], variables: Mapping[str, str], inputs: Sequence[str], output: str, *, sort_values: bool
) -> None:
    """Sort the lines of ``inputs`` into the file ``output`` by the command ``words``, which ends with this process.

    They are sorted in memory if the command is missing or fails, because the disk is full for example.
    """
    # There are other threads; this takes no lock of theirs, so the child cannot wait for one
    tie = partial(end_with_parent, signal.SIGKILL, os.getpid())
    if inputs:
        with open(output, "wb") as lines, suppress(OSError, subprocess.CalledProcessError):
            env = {**os.environ, **variables}
            subprocess.run([*words, *inputs], stdout=lines, env=env, check=True, preexec_fn=tie)
            return
    _sort_lines_in_memory(inputs, output, sort_values=sort_values)


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

"""A stage's tasks on this machine, by mrjob's inline and local runners: in this process, or one process per core."""

import errno
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from mrjob.local import LocalMRJobRunner
from mrjob.sim import _sort_lines_in_memory

from etl.errors import ERROR_PREFIX, ERRORS, INTERRUPTED, EnvironmentFailure
from etl.processes import end_with_parent, stop_all, tied_environment

POLL_INTERVAL_S = 0.02
STOP_TIMEOUT_S = 5.0  # after SIGTERM; then tasks are killed
MIN_FREE_BYTES = 64 << 10  # in the folder of temporary files: with less, it is full
# Variables of a task's Python: no threads for linear algebra, of which there is none; free memory is kept for the next
# buffer, because returning it and faulting it in again takes half of the time of reading from HDFS; and mrjob's
# distutils are Python's own, if it has them.
TASK_VARIABLES = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    **({"SETUPTOOLS_USE_DISTUTILS": "stdlib"} if sys.version_info < (3, 12) else {}),
}


class TaskFailure(EnvironmentFailure):
    """A task failed, and did not say why."""


class LocalRunner(LocalMRJobRunner):
    """mrjob's local runner, but this thread starts the tasks' processes and waits for them.

    Each step has two tasks for each core, or fewer if the job says so. mrjob's own runner forks a
    `multiprocessing.Pool`, which may wait for ever for a worker that a signal did not end (python/cpython#96995).
    """

    mappers: int | None = None
    reducers: int | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._tasks: dict[subprocess.Popen[bytes], Path] = {}  # running tasks, and the files of their standard error

    def _num_mappers(self, step_num: int) -> float:
        return self._half_of(self.mappers)

    def _num_reducers(self, step_num: int) -> float:
        return self._half_of(self.reducers)

    def _half_of(self, tasks: int | None) -> float:
        return min(self._num_cores(), tasks / 2 if tasks else math.inf)  # mrjob takes twice as many

    def _sort_input_func(self) -> Callable[..., None]:
        return self._sort_files

    def _sort_files(self, inputs: Sequence[str], output: str) -> None:
        """Sort the lines of ``inputs`` into the file ``output`` by the command ``sort``, which ends with this process.

        They are sorted in memory if the command is missing or fails, for example because the disk is full.
        """
        # There are other threads; this takes no lock of theirs, so the child cannot wait for one
        tie = partial(end_with_parent, signal.SIGKILL, os.getpid())
        env = {**os.environ, "LC_ALL": "C", "TMPDIR": self._get_local_tmp_dir()}
        with open(output, "wb") as lines, suppress(OSError, subprocess.CalledProcessError):
            words = [*self._sort_bin(), *inputs]
            nothing = subprocess.DEVNULL
            subprocess.run(words, stdin=nothing, stdout=lines, stderr=nothing, env=env, check=True, preexec_fn=tie)
            return
        _sort_lines_in_memory(inputs, output, sort_values=self._sort_values)

    def _invoke_task_func(self, task_type: str, step_num: int, task_num: int) -> Callable[..., None]:
        words = self._substep_args(step_num, task_type)
        errors = Path(self._task_stderr_path(task_type, step_num, task_num))

        def start(stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes], wd: str, env: Mapping[str, str]) -> None:
            # SIGKILL also ends a stopped task; the next run of the stage deletes what it leaves
            env = tied_environment(signal.SIGKILL, {**TASK_VARIABLES, **env})
            self._tasks[subprocess.Popen(words, stdin=stdin, stdout=stdout, stderr=stderr, cwd=wd, env=env)] = errors

        return start

    def _run_multiple(self, funcs: Iterable[Callable[[], None]], num_processes: int | None = None) -> None:
        """Run tasks to their end, as many at once as there are cores; ``funcs`` start them.

        Raises the error of the first that fails. No task is left running, also after an interrupt.
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
            errors = self._tasks.pop(task)
            if task.returncode:
                raise_failure(task.returncode, errors.read_text(errors="backslashreplace"))


def raise_failure(status: int, errors: str) -> NoReturn:
    """Raise the error of a task that ended with this status, read from its standard error."""
    if status < 0:
        name = signal.Signals(-status).name
        out_of_memory = " (out of memory? use smaller packs or --num-cores 1)" if name == "SIGKILL" else ""
        raise EnvironmentFailure(f"a task was ended by {name}{out_of_memory}; run again to go on")
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    line = re.search(f"^{ERROR_PREFIX}(.*)$", errors, re.MULTILINE)
    if line is None:
        output = "\n".join(each for each in errors.splitlines() if not each.startswith("reporter:"))
        raise TaskFailure(f"a task failed without an error message (status {status}); its output:\n{output}")
    raise ERRORS.get(status, EnvironmentFailure)(line[1])


def run_here(job: Any) -> dict[str, Any]:
    """Run the mrjob ``job`` to its end; returns what ``run.json`` keeps of it.

    Raises what a task raised, or EnvironmentFailure if the folder of temporary files is full: a task writes its errors
    there, too, and what this process itself writes while tasks have processes of their own.
    """
    logging.getLogger("mrjob").setLevel(logging.CRITICAL)
    try:
        with job.make_runner() as runner:
            runner.mappers, runner.reducers = job.job.get("mappers"), job.job.get("reducers")
            runner.run()
            return {"counters": runner.counters()[0]}
    except (OSError, TaskFailure) as error:
        folder = tempfile.gettempdir()
        is_ours = job.options.runner == "local" and getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)
        if not is_ours and shutil.disk_usage(folder).free >= MIN_FREE_BYTES:
            raise
        what = f"no space left in {folder}, the folder of temporary files"
        raise EnvironmentFailure(f"{what}; free some, or set TMPDIR to another folder") from None

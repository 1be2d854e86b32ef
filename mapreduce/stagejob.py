"""What the jobs share: a job is a stage whose tasks are lines of a work list.

A stage's driver (this process) prepares the stage, writes a job file (what every task needs to know) and a work list (a
line of JSON for each task's input), has mrjob run the tasks, checks what they published, and writes the marker. Tasks
publish their files themselves; nothing that a runner reports is taken for a result.
"""

import ctypes
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from mrjob.job import MRJob
from mrjob.protocol import JSONProtocol, JSONValueProtocol
from mrjob.step import StepFailedException

from etl.errors import DataError, EnvironmentFailure, RingsliceError, UsageError, run_reporting
from etl.options import DEFAULT_RUNNER, JSON, OVERWRITE, RUNNERS, Option, add_arguments, parse_values
from etl.progress import Progress
from etl.stages import WORK_FOLDER
from etl.storage import Place, json_bytes, open_place, publish_bytes
from etl.summary import Summary

POLL_INTERVAL_S = 0.5
DRIVER_PID = "RINGSLICE_DRIVER_PID"
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Work:
    """What a stage has its tasks do: ``job`` goes to all of them, each of ``lines`` to one.

    ``watch`` tells how many of ``total`` images are in published files by now, and what else there is to tell.
    """

    folder: Place
    job: dict[str, Any]
    lines: list[dict[str, Any]]
    total: int
    watch: Callable[[], tuple[int, str]]


class StageJob(MRJob, ABC):
    """A stage as an mrjob job. Subclasses give OPTIONS, `prepare` and `finish` for the driver, and the tasks' steps."""

    INPUT_PROTOCOL = JSONValueProtocol
    OUTPUT_PROTOCOL = JSONProtocol

    OPTIONS: ClassVar[tuple[Option, ...]]
    EXAMPLE: ClassVar[str]

    def configure_args(self) -> None:
        super().configure_args()
        self.add_passthru_arg("--job-file", metavar="URI", help="What every task needs to know; set by the driver.")
        add_arguments(self.arg_parser, (*self.OPTIONS, OVERWRITE, JSON))

    def _usage(self) -> str:  # what mrjob begins its --help with
        return f"%(prog)s [options] ROOT\n\n{self.__doc__}\n\nExample: {self.EXAMPLE}"

    def load_args(self, args: list[str]) -> None:
        super().load_args(args)
        self._arguments = list(args)
        self.options.runner = self.options.runner or DEFAULT_RUNNER
        if self.options.job_file and len(self.options.args) == 2:  # ROOT and the work list: the list alone is input
            self.options.args = self.options.args[1:]

    @property
    def job(self) -> dict[str, Any]:
        """In a task: what the driver wrote for all of them."""
        if not hasattr(self, "_job"):
            self._job = open_place(self.options.job_file).read_json()
        return self._job

    @abstractmethod
    def prepare(self, root: Place, values: dict[str, Any], runner: str, overwrite: bool) -> Work | None:
        """Begin the stage; None where it is done."""

    @abstractmethod
    def finish(self) -> None:
        """Check what the tasks published and write the marker."""

    @abstractmethod
    def summary(self, already_done: bool) -> Summary:
        """What to tell at the end."""

    def run_job(self) -> None:
        """Run the whole stage. Overrides mrjob's, which only runs the tasks."""
        if self.options.runner not in RUNNERS:
            raise UsageError(f"-r {self.options.runner}: runners are {', '.join(RUNNERS)}")
        if len(self.options.args) != 1:
            raise UsageError(f"give exactly one ROOT, got {self.options.args or 'none'}; example: {self.EXAMPLE}")
        root = open_place(self.options.args[0])
        values = parse_values(self.OPTIONS, vars(self.options))
        work = self.prepare(root, values, self.options.runner, self.options.overwrite)
        if work is not None:
            if work.lines:
                self._run_tasks(work)
            self.finish()
        self.summary(already_done=work is None).show(self.options.json)

    def _run_tasks(self, work: Work) -> None:
        job_file = work.folder / WORK_FOLDER / "job.json"
        job_file.delete()
        publish_bytes(job_file, work.folder / WORK_FOLDER, json_bytes(work.job))
        with tempfile.NamedTemporaryFile("w", prefix="ringslice-", suffix=".jsonl") as work_list:
            work_list.writelines(json.dumps(line) + "\n" for line in work.lines)
            work_list.flush()
            # tasks on this machine run in this very environment: without mrjob's bootstrap no shell stands between us
            # and them, so that they end with us
            ours = ("--job-file", job_file.uri, "--no-bootstrap-mrjob", "--cleanup-on-failure", "ALL")
            arguments = [*self._arguments, *ours, work_list.name]
            if self.options.runner == "local":
                os.environ[DRIVER_PID] = str(os.getpid())
            with _first_failure() as failure, _polling(work), type(self)(args=arguments).make_runner() as runner:
                try:
                    runner.run()
                except StepFailedException as error:
                    failure.raise_for(error)


@contextmanager
def _polling(work: Work) -> Iterator[None]:
    """Show how many images are in published files while the block runs."""
    stage = work.job["stage"]
    stopped = threading.Event()
    with Progress(stage, work.total, "images") as progress:
        progress.skip(work.watch()[0])

        def poll() -> None:
            while not stopped.wait(POLL_INTERVAL_S):
                progress.update(*work.watch())

        thread = threading.Thread(target=poll, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            progress.update(*work.watch())


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
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    if int(status.rpartition(")")[2].split()[1]) != driver_pid:  # its fourth field: the parent's parent (proc(5))
        raise KeyboardInterrupt


def main(job_class: type[StageJob]) -> NoReturn:
    """Run a job script: the driver, or one task of it, as its arguments say."""

    def run() -> int:
        job = job_class()
        if job.is_task() and DRIVER_PID in os.environ:
            end_with_driver(int(os.environ[DRIVER_PID]))
        job.execute()
        return 0

    sys.exit(run_reporting(run))

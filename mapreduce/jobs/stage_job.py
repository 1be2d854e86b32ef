"""The base of the jobs: a job is a stage whose tasks are lines of a work list.

The driver of a stage (this process) prepares the stage, writes a job file (the settings of all tasks) and a work list
(a line of JSON for the input of each task), has mrjob run the tasks, on this machine or on YARN, checks the files that
they published, and writes the marker. Tasks publish their files themselves; what a runner reports is not used as a
result.
"""

import glob
import json
import os
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import click
from mrjob.job import MRJob
from mrjob.protocol import JSONProtocol, JSONValueProtocol

from etl.entry_point import end_process, run_reporting
from etl.errors import EnvironmentFailure, UsageError
from etl.options.click_command import COUNT, Option, add_options, invoke
from etl.options.stage_options import (
    DEFAULT_RUNNER,
    ENVIRONMENT_OPTIONS,
    HADOOP,
    HADOOP_OPTIONS,
    JSON,
    RUNNERS,
)
from etl.progress import Progress
from etl.stages.run import Run, RunRecord
from etl.stages.stage import Stage
from etl.stages.summary import Summary
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place, json_bytes, open_place
from mapreduce.jobs.local import LocalRunner, run_here

if TYPE_CHECKING:
    from etl.slices.plan import Plan
    from mapreduce.jobs.yarn import YarnJob

REPORT_INTERVAL_S = 5.0
POLL_INTERVAL_S = 0.5
REDUCES = "mapreduce.job.reduces"
JOB_FILE = "job.json"

Show = Callable[[Summary], None]


@dataclass(frozen=True)
class TaskSize:
    """What makes a task worth the seconds that it takes to start, with its container's JVM where it has one."""

    size_bytes: int
    images: int


DECODING = TaskSize(64 << 20, 20_000)


def worthwhile_tasks(size_bytes: int, images: int, task: TaskSize = DECODING) -> int:
    """The number of tasks into which so much work is divided."""
    return max(1, round(size_bytes / task.size_bytes + images / task.images))


@dataclass(frozen=True)
class Work:
    """``job`` goes to all tasks, each of ``lines`` to one; ``tasks`` is the number of tasks worth having on a cluster.

    With a ``list`` in it, a fingerprint of the lines, a running job of another list is ended, not joined.

    A `Plan` makes its lines when they are asked for.

    ``watch`` returns how many of ``total`` images are in published files, and what else to show of the progress.
    ``helper_bytes`` is what a helper process of a mapper may take, beside the mapper itself. ``incomplete`` gives files
    of tasks that were killed, to be deleted before others begin.
    """

    job: dict[str, Any]
    lines: "list[dict[str, Any]] | Plan"
    tasks: int
    total: int
    watch: Callable[[], tuple[int, str]]
    helper_bytes: int = 0
    incomplete: Callable[[], Iterable[Place]] = tuple


class StageJob(MRJob, ABC):
    """A stage as an mrjob job. Subclasses have OPTIONS, `run_stage` for the driver, and the steps of the tasks.

    mrjob parses its own options only; tasks get their settings by ``--job-file``.
    """

    INPUT_PROTOCOL = JSONValueProtocol
    OUTPUT_PROTOCOL = JSONProtocol

    OPTIONS: ClassVar[tuple[Option, ...]]
    EXAMPLE: ClassVar[str]

    arguments: list[str]

    def configure_args(self) -> None:
        super().configure_args()
        self.arg_parser.allow_abbrev = False
        self.add_passthru_arg("--job-file", metavar="URI", help="The settings of all tasks; set by the driver.")

    def load_args(self, args: list[str]) -> None:
        super().load_args(args)
        self.arguments = list(args)
        self._reported = time.monotonic()
        self.options.runner = self.options.runner or DEFAULT_RUNNER
        self.options.conf_paths = self.options.conf_paths or []  # not the mrjob.conf of other projects
        if self.options.job_file:  # the work list comes after ROOT, and alone is input
            self.options.args = self.options.args[-1:]

    @classmethod
    def of_words(cls, *words: str) -> Self:
        """A job for the driver, of ROOT and options of mrjob. Raises UsageError for others."""
        try:
            job = cls(list(words))
        except ValueError as error:  # from argparse, by mrjob
            raise UsageError(f"{error}; example: {cls.EXAMPLE}") from None
        if job.options.runner not in RUNNERS:
            raise UsageError(f"-r {job.options.runner}: runners are {', '.join(RUNNERS)}")
        if len(job.options.args) != 1:
            raise UsageError(f"give exactly one ROOT, got {job.options.args or 'none'}; example: {cls.EXAMPLE}")
        return job

    @property
    def root(self) -> Place:
        """In the driver: ROOT."""
        return open_place(self.options.args[0])

    @abstractmethod
    def run_stage(self, values: Mapping[str, Any], show: Show) -> None:
        """In the driver: run the whole stage with these option values, by name; ``show`` gets its summary.

        Raises RingsliceError, also after the summary if the data falls short.
        """

    @property
    def job(self) -> dict[str, Any]:
        """In a task: the settings that the driver wrote for all of them."""
        if not hasattr(self, "_job"):
            self._job = open_place(self.options.job_file).read_json()
        return self._job

    @property
    def staging(self) -> Place:
        """In a task: the folder of files that are not published yet."""
        return open_place(self.options.job_file).parent

    def report(self, status: str) -> None:
        """In a task: report its status to the runner, at most every `REPORT_INTERVAL_S`; Hadoop kills silent tasks."""
        if time.monotonic() - self._reported > REPORT_INTERVAL_S:
            self._reported = time.monotonic()
            self.set_status(status)

    def count_task(self, bytes_in: int, bytes_out: int) -> None:
        """In a task: count the bytes that it read and wrote, and where it ran."""
        self.increment_counter("bytes", "in", bytes_in)
        self.increment_counter("bytes", "out", bytes_out)
        where = "in a YARN container" if os.environ.get("CONTAINER_ID") else "on the driver's machine"
        self.increment_counter("lines", where)

    def number_of_reducers(self, worthwhile: int) -> int:
        """The number that a property of Hadoop asks for, else ``worthwhile``; keys are made for this number.

        Raises UsageError if the property is not an integer >= 1.
        """
        asked = (self.options.jobconf or {}).get(REDUCES)
        try:
            return int(COUNT.convert(asked, None, None)) if asked and self.options.runner == HADOOP else worthwhile
        except click.BadParameter as error:
            raise UsageError(f"-D {REDUCES}: {error}") from None

    def hadoop_input_format(self) -> str | None:
        """On Hadoop, tasks get lines of the work list by their number, not by their bytes."""
        return "org.apache.hadoop.mapred.lib.NLineInputFormat" if self.options.runner == HADOOP else None

    def _runner_class(self) -> type:
        if self.options.runner == HADOOP:
            from mapreduce.jobs.yarn_runner import YarnRunner

            return YarnRunner
        return LocalRunner if self.options.runner == "local" else super()._runner_class()


class TaskRunner:
    """Runs the tasks of ``job`` for ``stage``; ``record`` is what ``run.json`` keeps."""

    def __init__(self, job: StageJob, stage: Stage, values: Mapping[str, Any]) -> None:
        """Raise EnvironmentFailure if the runner of ``job`` is hadoop, and a program or the queue is missing."""
        self.job, self.stage, self._values = job, stage, values
        self.record = RunRecord(job.options.runner)
        if job.options.runner == HADOOP:
            self._open_yarn_job().check()

    def run(self, run: Run, work: Work) -> None:
        """Run the tasks to their end, within a ``run`` of the stage. Raises what a task raised, if it is known."""
        if len(work.lines):
            run_tasks = self._run_on_yarn if self.job.options.runner == HADOOP else self._run_here
            self.record.note(**run_tasks(run, work))

    def _run_here(self, run: Run, work: Work) -> dict[str, Any]:
        # tasks on this machine run in this very environment: without mrjob's bootstrap no shell stands between us and
        # them, so that they end with us
        with _show_progress(work), self._tasks(work, _open_job_file(run, work), []) as job:
            return run_here(job)

    def _open_yarn_job(self) -> "YarnJob":
        from mapreduce.jobs.yarn import YarnJob

        asked = {name: self._values[name] for name in ("queue", "priority", "task_memory", "restart")}
        return YarnJob(self.stage, **asked, python_bin=self.job.options.python_bin)

    def _run_on_yarn(self, run: Run, work: Work) -> dict[str, Any]:
        yarn_job = self._open_yarn_job()
        with _show_progress(work, lambda: yarn_job.note):
            if running := yarn_job.find_running(run.is_resumed and self._has_same_list(work)):
                yarn_job.join(running)
                return yarn_job.facts()
            job_file = _open_job_file(run, work)
            properties = yarn_job.properties(work)
            properties |= {REDUCES: str(work.job["reducers"])} if "reducers" in work.job else {}
            words = [*yarn_job.words(job_file.parent), *(f"-D{name}={value}" for name, value in properties.items())]
            with self._tasks(work, job_file, words) as job:
                yarn_job.submit(job)
        return yarn_job.facts()

    def _has_same_list(self, work: Work) -> bool:
        """True unless the tasks of an earlier run were given another ``list`` of work."""
        files = [folder / JOB_FILE for folder in self.stage.task_folders()]
        return all(file.read_json().get("list") == work.job.get("list") for file in files if file.exists())

    @contextmanager
    def _tasks(self, work: Work, job_file: Place, words: list[str]) -> Iterator[StageJob]:
        """The mrjob job of the tasks alone; the user's words come after ``words`` of ours, and so win."""
        with tempfile.NamedTemporaryFile("w", prefix="ringslice-", suffix=".jsonl") as work_list:
            lines = (json.dumps(line, allow_nan=False, default=list) for line in work.lines)  # arrays are lists
            work_list.writelines(f"{line}\n" for line in lines)
            work_list.flush()
            ours = ("--job-file", job_file.uri, "--no-bootstrap-mrjob", "--cleanup-on-failure", "ALL")
            yield type(self.job)(args=[*words, *self.job.arguments, *ours, glob.escape(work_list.name)])


def _open_job_file(run: Run, work: Work) -> Place:
    job_file = run.open_tasks() / JOB_FILE
    run.delete(work.incomplete())
    publish_bytes(job_file, run.staging, json_bytes(work.job))
    return job_file


@contextmanager
def _show_progress(work: Work, note: Callable[[], str] = str) -> Iterator[None]:
    """Show how many images are in published files, and ``note``, while the block runs."""
    stopped = threading.Event()
    with Progress(work.job["stage"], work.total, "images") as progress:
        progress.skip(work.watch()[0])

        def update() -> None:
            with suppress(OSError, EnvironmentFailure):  # the next to read or write raises it
                done, more = work.watch()
                progress.update(done, ", ".join(filter(None, (more, note()))))

        def poll() -> None:
            pause = POLL_INTERVAL_S
            while not stopped.wait(pause):
                began = time.monotonic()
                update()
                pause = max(POLL_INTERVAL_S, 10 * (time.monotonic() - began))  # to list 10^6 parts takes seconds

        thread = threading.Thread(target=poll, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(POLL_INTERVAL_S)  # a daemon; storage may hold it up
            update()


def script_command(job_class: type[StageJob]) -> click.Command:
    """The command of a job's script: the options of the stage; words that it does not know go to mrjob."""

    # no short options: click would find them within mrjob's -Dname=value
    @click.command(
        context_settings={"ignore_unknown_options": True},
        help=f"{job_class.__doc__}\n\nMore options are those of mrjob: -r, -D and others; -h shows them.",
        epilog=f"Example: {job_class.EXAMPLE}",
    )
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="ROOT")
    @add_options(*job_class.OPTIONS, JSON, *HADOOP_OPTIONS, *ENVIRONMENT_OPTIONS)
    def command(words: tuple[str, ...], **values: Any) -> None:
        job = job_class.of_words(*words)
        job.run_stage(values, lambda summary: summary.show(values["json"], job.options.verbose))

    return command


def main(job_class: type[StageJob]) -> NoReturn:
    """Run a job script: one task of the job if mrjob started it, else the driver."""

    def run() -> int:
        if not {"--mapper", "--reducer"}.isdisjoint(sys.argv):
            job_class().execute()
            return 0
        return invoke(script_command(job_class), sys.argv[0])

    end_process(run_reporting(run))

"""What the jobs share: a job is a stage whose tasks are lines of a work list.

A stage's driver (this process) prepares the stage, writes a job file (what every task needs to know) and a work list (a
line of JSON for each task's input), has mrjob run the tasks, checks what they published, and writes the marker. Tasks
publish their files themselves; nothing that a runner reports is taken for a result.
"""

import json
import os
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import click
from mrjob.job import MRJob
from mrjob.protocol import JSONProtocol, JSONValueProtocol

from etl.errors import UsageError, end_process, run_reporting
from etl.options.click_command import COUNT, Option, add_options, invoke
from etl.options.stage_options import (
    DEFAULT_RUNNER,
    ENVIRONMENT_OPTIONS,
    HADOOP,
    HADOOP_OPTIONS,
    JSON,
    OVERWRITE,
    RUNNERS,
)
from etl.stages.run import Run
from etl.stages.run_record import RunRecord
from etl.stages.stage import Stage
from etl.stages.summary import Summary
from etl.storage.atomic import publish_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place, open_place
from mapreduce.jobs.local import LocalRunner, run_here
from mapreduce.jobs.work import JOB_FILE, Work, showing_progress

if TYPE_CHECKING:  # a task starts without them, the driver imports them where it needs them
    from mapreduce.jobs.yarn import YarnJob

REPORT_INTERVAL_S = 5.0
REDUCES = "mapreduce.job.reduces"


class StageJob(MRJob, ABC):
    """A stage as an mrjob job. Subclasses give OPTIONS, `prepare` and `finish` for the driver, and the tasks' steps.

    mrjob parses its own options only; tasks get all that they need to know by ``--job-file``.
    """

    INPUT_PROTOCOL = JSONValueProtocol
    OUTPUT_PROTOCOL = JSONProtocol

    OPTIONS: ClassVar[tuple[Option, ...]]
    EXAMPLE: ClassVar[str]

    stage_run: Run | None = None  # in the driver: set by `prepare`

    def configure_args(self) -> None:
        super().configure_args()
        self.arg_parser.allow_abbrev = False
        self.add_passthru_arg("--job-file", metavar="URI", help="What every task needs to know; set by the driver.")

    @classmethod
    def of_words(cls, *words: str) -> Self:
        """A job for the driver, of ROOT and mrjob's options. Raises UsageError for an unknown option."""
        try:
            return cls(list(words))
        except ValueError as error:  # from argparse, by mrjob
            raise UsageError(f"{error}; example: {cls.EXAMPLE}") from None

    def load_args(self, args: list[str]) -> None:
        super().load_args(args)
        self._arguments = list(args)
        self._reported = time.monotonic()
        self.options.runner = self.options.runner or DEFAULT_RUNNER
        self.options.conf_paths = self.options.conf_paths or []  # not the mrjob.conf of other projects
        if self.options.job_file:  # after ROOT comes the work list, which alone is input
            self.options.args = self.options.args[-1:]

    @property
    def job(self) -> dict[str, Any]:
        """In a task: what the driver wrote for all of them."""
        if not hasattr(self, "_job"):
            self._job = open_place(self.options.job_file).read_json()
        return self._job

    @property
    def attempts(self) -> Place:
        """In a task: where it writes what it is about to publish."""
        return open_place(self.options.job_file).parent

    def report(self, status: str) -> None:
        """In a task: tell the runner that it is alive, now and then; a silent one is ended by Hadoop."""
        if time.monotonic() - self._reported > REPORT_INTERVAL_S:
            self._reported = time.monotonic()
            self.set_status(status)

    def count_task(self, bytes_in: int, bytes_out: int) -> None:
        """In a task: count what it read and wrote, and where it ran."""
        self.increment_counter("bytes", "in", bytes_in)
        self.increment_counter("bytes", "out", bytes_out)
        where = "in a YARN container" if os.environ.get("CONTAINER_ID") else "on the driver's machine"
        self.increment_counter("lines", where)

    @property
    def open_run(self) -> Run:
        """In the driver: the run of the stage that `prepare` began."""
        assert self.stage_run is not None
        return self.stage_run

    @abstractmethod
    def stage_at(self, root: Place, values: dict[str, Any]) -> Stage:
        """The stage that this job is, for these option values."""

    @abstractmethod
    def prepare(self, root: Place, values: dict[str, Any], runner: str, overwrite: bool) -> Work | None:
        """Begin the stage, which is ``self.stage``, as ``self.stage_run``; None if it is done."""

    @abstractmethod
    def finish(self) -> Work | None:
        """Check what the tasks published and write the marker; or give what is to be run before that can be."""

    @abstractmethod
    def summary(self, already_done: bool) -> Summary:
        """What to tell at the end."""

    def conclude(self) -> None:
        """After all was told: raise where what was made does not hold what it should."""

    def run_stage(self, values: Mapping[str, Any], show: Callable[[Summary], None]) -> None:
        """Run the whole stage with these option values, by name; ``show`` gets its summary.

        Raises RingsliceError, also after the summary if the data falls short.
        """
        if self.options.runner not in RUNNERS:
            raise UsageError(f"-r {self.options.runner}: runners are {', '.join(RUNNERS)}")
        if len(self.options.args) != 1:
            raise UsageError(f"give exactly one ROOT, got {self.options.args or 'none'}; example: {self.EXAMPLE}")
        root, values = open_place(self.options.args[0]), dict(values)
        self.stage = self.stage_at(root, values)
        self.run_record = RunRecord(self.options.runner)
        yarn_job = self._yarn_job(values) if self.options.runner == HADOOP else None
        try:
            work = first = self.prepare(root, values, self.options.runner, bool(values.get("overwrite")))
            while work is not None:
                if len(work.lines):
                    self.run_record.note(**(self._run_on_yarn(work, yarn_job) if yarn_job else self._run_here(work)))
                work = self.finish()
                yarn_job = yarn_job and replace(yarn_job, application=None)
        finally:
            if self.stage_run is not None:
                self.stage_run.release()
        show(self.summary(already_done=first is None))
        self.conclude()

    def _run_here(self, work: Work) -> dict[str, Any]:
        # tasks on this machine run in this very environment: without mrjob's bootstrap no shell stands between us and
        # them, so that they end with us
        with showing_progress(work), self._tasks(work, self._open_job_file(work), []) as job:
            return run_here(job)

    def _yarn_job(self, values: Mapping[str, Any]) -> "YarnJob":
        from mapreduce.jobs.yarn import ClusterOptions, YarnJob

        asked = {name: values[name] for name in ("queue", "priority", "task_memory", "restart")}
        job = YarnJob(self.stage, ClusterOptions(**asked, python_bin=self.options.python_bin))
        job.check()
        return job

    def _run_on_yarn(self, work: Work, yarn_job: "YarnJob") -> dict[str, Any]:
        from mapreduce.jobs.yarn import arguments

        with showing_progress(work, lambda: yarn_job.note):
            if running := yarn_job.running(self.open_run.is_resumed):
                yarn_job.join(running)
                return yarn_job.facts()
            job_file = self._open_job_file(work)
            properties = yarn_job.options.jobconf(self.stage, yarn_job.tag, work)
            properties |= {REDUCES: str(work.job["reducers"])} if "reducers" in work.job else {}
            words = arguments(yarn_job.options, self.stage, job_file.parent)
            words += [f"-D{name}={value}" for name, value in properties.items()]
            with self._tasks(work, job_file, words) as job:
                yarn_job.submit(job)
        return yarn_job.facts()

    def number_of_reducers(self, worthwhile: int) -> int:
        """As many as a property of Hadoop's asks for, else ``worthwhile``: keys are made for so many.

        Raises UsageError where it asks for none.
        """
        asked = (self.options.jobconf or {}).get(REDUCES)
        try:
            return int(COUNT.convert(asked, None, None)) if asked and self.options.runner == HADOOP else worthwhile
        except click.BadParameter as error:
            raise UsageError(f"-D {REDUCES}: {error}") from None

    def _open_job_file(self, work: Work) -> Place:
        job_file = self.open_run.open_tasks() / JOB_FILE
        publish_bytes(job_file, self.open_run.staging, json_bytes(work.job))
        return job_file

    @contextmanager
    def _tasks(self, work: Work, job_file: Place, words: list[str]) -> Iterator["StageJob"]:
        """The mrjob job of the tasks alone; what the user gave comes after ``words`` of ours, and so wins."""
        with tempfile.NamedTemporaryFile("w", prefix="ringslice-", suffix=".jsonl") as work_list:
            lines = (json.dumps(line, allow_nan=False, default=list) for line in work.lines)  # arrays are lists
            work_list.writelines(f"{line}\n" for line in lines)
            work_list.flush()
            ours = ("--job-file", job_file.uri, "--no-bootstrap-mrjob", "--cleanup-on-failure", "ALL")
            yield type(self)(args=[*words, *self._arguments, *ours, work_list.name])

    def hadoop_input_format(self) -> str | None:
        """On Hadoop, lines of the work list are dealt to tasks by their number, not by their bytes."""
        return "org.apache.hadoop.mapred.lib.NLineInputFormat" if self.options.runner == HADOOP else None

    def _runner_class(self) -> type:
        if self.options.runner == HADOOP:
            from mapreduce.jobs.yarn_runner import YarnRunner

            return YarnRunner
        return LocalRunner if self.options.runner == "local" else super()._runner_class()


def script_command(job_class: type[StageJob]) -> click.Command:
    """The command of a job's script: the stage's options; words that it does not know are mrjob's."""

    # no short options: click would find them within mrjob's -Dname=value
    @click.command(
        context_settings={"ignore_unknown_options": True},
        help=f"{job_class.__doc__}\n\nMore options are those of mrjob: -r, -D and others; -h shows them.",
        epilog=f"Example: {job_class.EXAMPLE}",
    )
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="ROOT")
    @add_options(*job_class.OPTIONS, OVERWRITE, JSON, *HADOOP_OPTIONS, *ENVIRONMENT_OPTIONS)
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

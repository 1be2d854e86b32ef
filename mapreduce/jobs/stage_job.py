"""What the jobs share: a job is a stage whose tasks are lines of a work list.

A stage's driver (this process) prepares the stage, writes a job file (what every task needs to know) and a work list (a
line of JSON for each task's input), has mrjob run the tasks, checks what they published, and writes the marker. Tasks
publish their files themselves; nothing that a runner reports is taken for a result.
"""

import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from mrjob.job import MRJob
from mrjob.protocol import JSONProtocol, JSONValueProtocol

from etl.errors import UsageError, end_process, run_reporting
from etl.options.option import Option, add_arguments, parse_values, set_variables
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
from etl.values import positive
from mapreduce.jobs.local import LocalRunner, run_here
from mapreduce.jobs.work import JOB_FILE, Work, showing_progress

if TYPE_CHECKING:  # a task starts without them, the driver imports them where it needs them
    from mapreduce.jobs.yarn import YarnJob

REPORT_INTERVAL_S = 5.0
REDUCES = "mapreduce.job.reduces"


class StageJob(MRJob, ABC):
    """A stage as an mrjob job. Subclasses give OPTIONS, `prepare` and `finish` for the driver, and the tasks' steps."""

    INPUT_PROTOCOL = JSONValueProtocol
    OUTPUT_PROTOCOL = JSONProtocol

    OPTIONS: ClassVar[tuple[Option, ...]]
    EXAMPLE: ClassVar[str]

    stage_run: Run | None = None  # in the driver: set by `prepare`

    def configure_args(self) -> None:
        super().configure_args()
        self.add_passthru_arg("--job-file", metavar="URI", help="What every task needs to know; set by the driver.")
        add_arguments(self.arg_parser, (*self.OPTIONS, *HADOOP_OPTIONS, *ENVIRONMENT_OPTIONS, OVERWRITE, JSON))

    def _usage(self) -> str:  # what mrjob begins its --help with
        return f"%(prog)s [options] ROOT\n\n{self.__doc__}\n\nExample: {self.EXAMPLE}"

    def load_args(self, args: list[str]) -> None:
        super().load_args(args)
        self._arguments = list(args)
        set_variables(ENVIRONMENT_OPTIONS, vars(self.options))
        self._reported = time.monotonic()
        self.options.runner = self.options.runner or DEFAULT_RUNNER
        self.options.conf_paths = self.options.conf_paths or []  # not the mrjob.conf of other projects
        if self.options.job_file and len(self.options.args) == 2:  # ROOT and the work list: the list alone is input
            self.options.args = self.options.args[1:]

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

    def run_job(self) -> None:
        """Run the whole stage. Overrides mrjob's, which only runs the tasks."""
        if self.options.runner not in RUNNERS:
            raise UsageError(f"-r {self.options.runner}: runners are {', '.join(RUNNERS)}")
        if len(self.options.args) != 1:
            raise UsageError(f"give exactly one ROOT, got {self.options.args or 'none'}; example: {self.EXAMPLE}")
        root = open_place(self.options.args[0])
        values = parse_values(self.OPTIONS, vars(self.options))
        self.stage = self.stage_at(root, values)
        self.run_record = RunRecord(self.options.runner)
        yarn_job = self._yarn_job() if self.options.runner == HADOOP else None
        try:
            work = first = self.prepare(root, values, self.options.runner, self.options.overwrite)
            while work is not None:
                if len(work.lines):
                    self.run_record.note(**(self._run_on_yarn(work, yarn_job) if yarn_job else self._run_here(work)))
                work = self.finish()
                yarn_job = yarn_job and replace(yarn_job, application=None)
        finally:
            if self.stage_run is not None:
                self.stage_run.release()
        self.summary(already_done=first is None).show(self.options.json, self.options.verbose)
        self.conclude()

    def _run_here(self, work: Work) -> dict[str, Any]:
        # tasks on this machine run in this very environment: without mrjob's bootstrap no shell stands between us and
        # them, so that they end with us
        with showing_progress(work), self._tasks(work, self._open_job_file(work), []) as job:
            return run_here(job)

    def _yarn_job(self) -> "YarnJob":
        from mapreduce.jobs.yarn import ClusterOptions, YarnJob

        asked = parse_values(HADOOP_OPTIONS, vars(self.options))
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
            return positive(asked) if asked and self.options.runner == HADOOP else worthwhile
        except ValueError as error:
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


def main(job_class: type[StageJob]) -> NoReturn:
    """Run a job script: the driver, or one task of it, as its arguments say."""

    def run() -> int:
        job_class().execute()
        return 0

    end_process(run_reporting(run))

"""The base of the jobs: a job is a stage whose tasks are lines of a work list.

The driver of a stage (this process) prepares the stage, writes a job file (the settings of all tasks) and a work list
(a line of JSON for the input of each task), has mrjob run the tasks (`mapreduce.jobs.task_runner`), checks the files
that they published, and writes the marker. Tasks publish their files themselves; what a runner reports is not used as
a result.
"""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, Self

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
from etl.stages.summary import Summary
from etl.storage.place import Place, open_place
from mapreduce.jobs.local import LocalRunner

REPORT_INTERVAL_S = 5.0
REDUCES = "mapreduce.job.reduces"

Show = Callable[[Summary], None]


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


def script_command(job_class: type[StageJob]) -> click.Command:
    """The command of a job's script: the options of the stage; words that it does not know go to mrjob."""

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

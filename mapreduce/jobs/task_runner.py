"""The tasks of a stage, started by its driver: on this machine or on YARN, by mrjob."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from etl.options.stage_options import HADOOP
from etl.stages.stage import Run, Stage
from etl.storage.atomic import publish_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place
from mapreduce.jobs.local import run_here
from mapreduce.jobs.stage_job import REDUCES, StageJob
from mapreduce.jobs.work import JOB_FILE, Work, showing_progress

if TYPE_CHECKING:
    from mapreduce.jobs.yarn import YarnJob


class TaskRunner:
    """Runs tasks of ``stage``, whose claim it releases at its end; ``record`` is the content of ``run.json``."""

    def __init__(self, job: StageJob, stage: Stage, values: Mapping[str, Any]) -> None:
        """Raise EnvironmentFailure if the runner of ``job`` is hadoop, and a program or the queue is missing."""
        self.job, self.stage = job, stage
        self.record = Run(job.options.runner)
        self._yarn_job = self._open_yarn_job(values) if job.options.runner == HADOOP else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stage.release()

    def run(self, work: Work) -> None:
        """Run the tasks to their end. Raises what a task raised, else EnvironmentFailure."""
        if len(work.lines):
            self.record.note(**(self._run_on_yarn(work, self._yarn_job) if self._yarn_job else self._run_here(work)))

    def _run_here(self, work: Work) -> dict[str, Any]:
        # tasks on this machine run in this very environment: without mrjob's bootstrap no shell stands between us and
        # them, so that they end with us
        with showing_progress(work), self._tasks(work, self._open_job_file(work), []) as job:
            return run_here(job)

    def _open_yarn_job(self, values: Mapping[str, Any]) -> "YarnJob":
        from mapreduce.jobs.yarn import ClusterOptions, YarnJob

        asked = {name: values[name] for name in ("queue", "priority", "task_memory", "restart")}
        job = YarnJob(self.stage, ClusterOptions(**asked, python_bin=self.job.options.python_bin))
        job.check()
        return job

    def _run_on_yarn(self, work: Work, yarn_job: "YarnJob") -> dict[str, Any]:
        from mapreduce.jobs.yarn import arguments

        self._yarn_job = replace(yarn_job, application=None)  # for further work
        with showing_progress(work, lambda: yarn_job.note):
            if running := yarn_job.running():
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

    def _open_job_file(self, work: Work) -> Place:
        job_file = self.stage.open_tasks() / JOB_FILE
        publish_bytes(job_file, self.stage.attempts, json_bytes(work.job))
        return job_file

    @contextmanager
    def _tasks(self, work: Work, job_file: Place, words: list[str]) -> Iterator[StageJob]:
        """The mrjob job of the tasks alone; the user's words come after ``words`` of ours, and so win."""
        with tempfile.NamedTemporaryFile("w", prefix="ringslice-", suffix=".jsonl") as work_list:
            lines = (json.dumps(line, allow_nan=False, default=list) for line in work.lines)  # arrays are lists
            work_list.writelines(f"{line}\n" for line in lines)
            work_list.flush()
            ours = ("--job-file", job_file.uri, "--no-bootstrap-mrjob", "--cleanup-on-failure", "ALL")
            yield type(self.job)(args=[*words, *self.job.arguments, *ours, work_list.name])

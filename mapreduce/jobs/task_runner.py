"""The tasks of a stage, started by its driver: on this machine or on YARN, by mrjob."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etl.options.stage_options import HADOOP
from etl.stages.run import Run
from etl.stages.run_record import RunRecord
from etl.stages.stage import Stage
from etl.storage.atomic import publish_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place
from mapreduce.jobs.local import run_here
from mapreduce.jobs.stage_job import REDUCES, StageJob
from mapreduce.jobs.work import JOB_FILE, Work, showing_progress

if TYPE_CHECKING:
    from mapreduce.jobs.yarn import YarnJob


class TaskRunner:
    """Runs the tasks of ``job`` for ``stage``; ``record`` is what ``run.json`` keeps."""

    def __init__(self, job: StageJob, stage: Stage, values: Mapping[str, Any]) -> None:
        """Raise EnvironmentFailure if the runner of ``job`` is hadoop, and a program or the queue is missing."""
        self.job, self.stage = job, stage
        self.record = RunRecord(job.options.runner)
        self._yarn_job = self._open_yarn_job(values) if job.options.runner == HADOOP else None

    def run(self, run: Run, work: Work) -> None:
        """Run the tasks to their end, within a ``run`` of the stage. Raises what a task raised, if it is known."""
        if len(work.lines):
            here = self._yarn_job is None
            self.record.note(**(self._run_here(run, work) if here else self._run_on_yarn(run, work)))

    def _run_here(self, run: Run, work: Work) -> dict[str, Any]:
        # tasks on this machine run in this very environment: without mrjob's bootstrap no shell stands between us and
        # them, so that they end with us
        with showing_progress(work), self._tasks(work, _open_job_file(run, work), []) as job:
            return run_here(job)

    def _open_yarn_job(self, values: Mapping[str, Any]) -> "YarnJob":
        from mapreduce.jobs.yarn import ClusterOptions, YarnJob

        asked = {name: values[name] for name in ("queue", "priority", "task_memory", "restart")}
        job = YarnJob(self.stage, ClusterOptions(**asked, python_bin=self.job.options.python_bin))
        job.check()
        return job

    def _run_on_yarn(self, run: Run, work: Work) -> dict[str, Any]:
        from mapreduce.jobs.yarn import arguments

        assert self._yarn_job is not None
        yarn_job, self._yarn_job = self._yarn_job, replace(self._yarn_job, application=None)  # for further work
        with showing_progress(work, lambda: yarn_job.note):
            if running := yarn_job.running(run.is_resumed):
                yarn_job.join(running)
                return yarn_job.facts()
            job_file = _open_job_file(run, work)
            properties = yarn_job.options.jobconf(self.stage, yarn_job.tag, work)
            properties |= {REDUCES: str(work.job["reducers"])} if "reducers" in work.job else {}
            words = arguments(yarn_job.options, self.stage, job_file.parent)
            words += [f"-D{name}={value}" for name, value in properties.items()]
            with self._tasks(work, job_file, words) as job:
                yarn_job.submit(job)
        return yarn_job.facts()

    @contextmanager
    def _tasks(self, work: Work, job_file: Place, words: list[str]) -> Iterator[StageJob]:
        """The mrjob job of the tasks alone; the user's words come after ``words`` of ours, and so win."""
        with tempfile.NamedTemporaryFile("w", prefix="ringslice-", suffix=".jsonl") as work_list:
            lines = (json.dumps(line, allow_nan=False, default=list) for line in work.lines)  # arrays are lists
            work_list.writelines(f"{line}\n" for line in lines)
            work_list.flush()
            ours = ("--job-file", job_file.uri, "--no-bootstrap-mrjob", "--cleanup-on-failure", "ALL")
            yield type(self.job)(args=[*words, *self.job.arguments, *ours, work_list.name])


def _open_job_file(run: Run, work: Work) -> Place:
    job_file = run.open_tasks() / JOB_FILE
    publish_bytes(job_file, run.staging, json_bytes(work.job))
    return job_file

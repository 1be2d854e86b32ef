"""The tasks of a stage, started by its driver: on this machine or on YARN, by mrjob."""

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from etl.errors import EnvironmentFailure
from etl.options.stage_options import HADOOP
from etl.progress import Progress
from etl.stages.run import Run, RunRecord
from etl.stages.stage import Stage
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place, json_bytes
from mapreduce.jobs.local import run_here
from mapreduce.jobs.stage_job import REDUCES, StageJob

if TYPE_CHECKING:
    from mapreduce.jobs.yarn import YarnJob

JOB_FILE = "job.json"
POLL_INTERVAL_S = 0.5


@dataclass(frozen=True)
class TaskSize:
    """What makes a task worth the seconds that it takes to start, with its container's JVM where it has one."""

    size_bytes: int
    images: int


DECODING = TaskSize(64 << 20, 20_000)


def worthwhile_tasks(size_bytes: int, images: int, task: TaskSize = DECODING) -> int:
    """The number of tasks into which so much work is divided."""
    return max(1, round(size_bytes / task.size_bytes + images / task.images))


class Lines(Protocol):
    """The lines of a work list: their number is known, and they may be made only when asked for."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...


@dataclass(frozen=True)
class Work:
    """``job`` goes to all tasks, each of ``lines`` to one; ``tasks`` is the number of tasks worth having on a cluster.

    ``watch`` returns how many of ``total`` images are in published files, and what else to show of the progress.
    ``helper_bytes`` is what a helper process of a mapper may take, beside the mapper itself.
    """

    job: dict[str, Any]
    lines: Lines
    tasks: int
    total: int
    watch: Callable[[], tuple[int, str]]
    helper_bytes: int = 0


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
        with _showing_progress(work), self._tasks(work, _open_job_file(run, work), []) as job:
            return run_here(job)

    def _open_yarn_job(self) -> "YarnJob":
        from mapreduce.jobs.yarn import YarnJob

        asked = {name: self._values[name] for name in ("queue", "priority", "task_memory", "restart")}
        return YarnJob(self.stage, **asked, python_bin=self.job.options.python_bin)

    def _run_on_yarn(self, run: Run, work: Work) -> dict[str, Any]:
        yarn_job = self._open_yarn_job()
        with _showing_progress(work, lambda: yarn_job.note):
            if running := yarn_job.find_running(run.is_resumed):
                yarn_job.join(running)
                return yarn_job.facts()
            job_file = _open_job_file(run, work)
            properties = yarn_job.properties(work)
            properties |= {REDUCES: str(work.job["reducers"])} if "reducers" in work.job else {}
            words = [*yarn_job.words(job_file.parent), *(f"-D{name}={value}" for name, value in properties.items())]
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


@contextmanager
def _showing_progress(work: Work, note: Callable[[], str] = str) -> Iterator[None]:
    """Show how many images are in published files, and ``note``, while the block runs."""
    stopped = threading.Event()
    with Progress(work.job["stage"], work.total, "images") as progress:
        progress.skip(work.watch()[0])

        def update() -> None:
            with suppress(OSError, EnvironmentFailure):  # the next to read or write raises it
                done, more = work.watch()
                progress.update(done, ", ".join(filter(None, (more, note()))))

        def poll() -> None:
            while not stopped.wait(POLL_INTERVAL_S):
                update()

        thread = threading.Thread(target=poll, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(POLL_INTERVAL_S)  # a daemon; storage may hold it up
            update()

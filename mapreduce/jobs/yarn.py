"""A stage's job on YARN: submitted or joined, followed, and ended with its driver."""

import hashlib
import logging
import math
import os
import re
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from mrjob.step import StepFailedException

from etl.errors import ERROR_PREFIX, ERRORS, DataError, EnvironmentFailure, UsageError, is_debug
from etl.hadoop.site_config import hadoop_command, hadoop_user, java_home, streaming_jar
from etl.hadoop.yarn_api import Application, FailedAttempt, ResourceManager
from etl.progress import log
from etl.stages.stage import Stage
from etl.storage.atomic import TakenError, publish_stream
from etl.storage.hdfs_settings import LIBHDFS, HdfsSettings
from etl.storage.place import READ_BUFFER_BYTES, Place, open_place
from mapreduce.jobs.local import TASK_VARIABLES
from mapreduce.jobs.python_archive import cached_archive
from mapreduce.jobs.stage_job import JOB_FILE, POLL_INTERVAL_S, Work

PACKED_PYTHON = "env/bin/python"
PASSED_ON = re.compile(r"RINGSLICE_(HDFS_\w+|DEBUG)|ARROW_LIBHDFS_DIR|LIBHDFS_OPTS")  # variables for tasks
PYTHON_BYTES = 320 << 20  # of a container: what a task's Python and what the JVM keeps outside its heap take
# A task's JVM lives for seconds and mostly moves bytes: with its second compiler it takes twice as long to start.
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
LOST_COUNTS = ("failedMapAttempts", "killedMapAttempts", "failedReduceAttempts", "killedReduceAttempts")
OUR_COUNTERS = frozenset({"images", "examples", "bytes", "lines"})
MIN_HEAP_BYTES = 128 << 20
CLIENT_TIMEOUT_S = 8.0  # after its job ended, `hadoop jar` asks a master that is gone, and then a history server
RESOURCE_MANAGER_TIMEOUT_S = 60.0  # without an answer for so long, the job is given up
# what names a cause in Hadoop's output, best first: of the launcher; an exception; of the application master; a failure
CAUSES = (
    r"Error Launching job : (.*)",
    r"\b(\w+(?:Exception|Error): .*)",
    r"Diagnostics: (?:\[[^]]*\])?\s*(\S.*)",
    r"(.*(?:failed|killed).*)",
)
LAST_LINES = frozenset({"Streaming Command Failed!", "Streaming Job Failed!"})  # the last line, whatever the cause
SIGNAL_STATUS = 128  # a greater exit status is this plus the number of a signal


def memory_properties(task_memory: int, helper_bytes: int = 0) -> dict[str, str]:
    """Divide a container's memory, in bytes, between the JVM's heap, its sort buffer, and the task's Python.

    A mapper's container has ``helper_bytes`` in addition, for its helper process.
    """
    settings = HdfsSettings.from_environment()
    python = PYTHON_BYTES + (settings.heap_bytes // 2 if settings.driver == LIBHDFS else 0)  # it fills half of it
    heap = max(MIN_HEAP_BYTES, task_memory - python) >> 20
    # few new objects survive, and the sort buffer takes most of the heap, which need not grow
    jvm = f"-Xmx{heap}m -Xms{heap}m -Xmn{heap // 8}m {QUICK_JVM}"
    return {
        "mapreduce.map.memory.mb": str((task_memory + helper_bytes) >> 20),
        "mapreduce.reduce.memory.mb": str(task_memory >> 20),
        "mapreduce.map.java.opts": jvm,
        "mapreduce.reduce.java.opts": jvm,
        "mapreduce.task.io.sort.mb": str(heap * 3 // 5),
        "mapreduce.map.sort.spill.percent": "0.95",
        # what is fetched goes to disk anyway; with Hadoop's 0.7 it would fill the heap before
        "mapreduce.reduce.shuffle.input.buffer.percent": "0.3",
    }


@dataclass
class YarnJob:
    """A job of ``stage`` on the cluster, with these options of the user's. ``note`` is its progress in a few words."""

    stage: Stage
    task_memory: int
    queue: str | None = None
    priority: str | None = None
    restart: bool = False
    python_bin: str | None = None
    manager: ResourceManager = field(default_factory=ResourceManager.of_site)
    application: Application | None = None
    failed: list[FailedAttempt] = field(default_factory=list)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    note: str = ""
    _answered: float = field(default_factory=time.monotonic)
    _ended: float = 0.0

    @property
    def tag(self) -> str:
        """The tag of every application of this stage's folder, whoever submits it."""
        return "ringslice-" + hashlib.sha256(self.stage.folder.uri.encode()).hexdigest()[:20]

    def check(self) -> None:
        """Raise EnvironmentFailure if a program of Hadoop's is missing, or the cluster does not have the queue."""
        java_home(), hadoop_command(), streaming_jar()
        self.manager.queues(self.queue)

    def properties(self, work: Work) -> dict[str, str]:
        """Hadoop's properties for a job that does this work."""
        lines = len(work.lines)
        asked = {"mapreduce.job.queuename": self.queue, "mapreduce.job.priority": self.priority}
        return {
            "mapreduce.job.name": f"ringslice {self.stage.name} {self.stage.folder}",
            "mapreduce.job.tags": self.tag,
            "mapreduce.input.lineinputformat.linespermap": str(math.ceil(lines / min(lines, work.tasks))),
            "stream.map.input.ignoreKey": "true",
            **memory_properties(self.task_memory, work.helper_bytes),
            "mapreduce.map.output.compress": "false",
            "mapreduce.job.reduce.slowstart.completedmaps": "0.8",
            **{name: value for name, value in asked.items() if value},
        }

    def words(self, tasks: Place) -> list[str]:
        """The words for mrjob's Hadoop runner that depend on the site: its programs, and the containers' Python.

        ``tasks`` is the folder of the tasks. Uploads the packed Python if the cluster does not have it.
        """
        os.environ.setdefault("JAVA_HOME", str(java_home()))
        words = ["--hadoop-bin", hadoop_command(), "--hadoop-streaming-jar", str(streaming_jar())]
        passed = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
        for name, value in {**passed, **TASK_VARIABLES, "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}.items():
            words += ["--cmdenv", f"{name}={value}"]
        if self.python_bin is None:
            words += ["--python-bin", PACKED_PYTHON, "--archives", f"{upload_python(self.stage)}#env"]
        on_hdfs = self.stage.folder.filesystem.scheme == "hdfs"
        return [*words, "--hadoop-tmp-dir", (tasks / "mrjob" if on_hdfs else _home(self.stage) / "jobs").uri]

    def facts(self) -> dict[str, Any]:
        """Return what ``run.json`` keeps of it."""
        applications = [self.application.id] if self.application else []
        ours = {group: counts for group, counts in self.counters.items() if group in OUR_COUNTERS}
        failed = [f"{each.id} {each.state.lower()}" for each in self.failed]
        return {"applications": applications, "counters": ours, "attempts_lost": failed}

    def find_running(self, is_resumed: bool) -> Application | None:
        """A job of this stage that still runs and can be joined; others are ended.

        One can be joined if this run resumes the same plan, and the job's tasks may still publish.
        """
        running = self.manager.tagged(self.tag)
        may_publish = any((folder / JOB_FILE).exists() for folder in self.stage.task_folders())
        if len(running) == 1 and is_resumed and may_publish and not self.restart:
            return running[0]
        for each in running:
            log(self.stage.name, f"killing {each.id}, which still runs for {self.stage.folder}")
            self.end(each.id)
        return None

    def join(self, application: Application) -> None:
        """Follow an application of an earlier run to its end."""
        log(self.stage.name, f"joining {application.id}, which runs already (--restart would end it)")
        self.application = application
        self._follow_to_the_end()

    def _follow_to_the_end(self, output: str = "") -> None:
        """Follow the application until the ResourceManager reports its end. Raises if it did not succeed."""
        try:
            while self.application and not self.application.ended:
                self.counters = self.manager.counters(self.application.id) or self.counters
                time.sleep(POLL_INTERVAL_S)
                self.follow()
        except BaseException:
            if self.application:
                self.end(self.application.id)
            raise
        if self.application is None or not self.application.succeeded:
            self.raise_failure(output or (self.application.diagnostics if self.application else ""))

    def submit(self, job: Any) -> None:
        """Run the mrjob ``job``, by a `YarnRunner`, to its end; kill it on the cluster if anything is raised here."""
        # messages below a warning contain whole command lines, with the values of -D and --cmdenv
        logging.getLogger("mrjob").setLevel(logging.WARNING if is_debug() else logging.ERROR)
        with job.make_runner() as runner:
            runner.follow, self._answered = self.follow, time.monotonic()
            try:
                runner.run()
                self.counters = runner.counters()[0]
            except StepFailedException:  # raised by the client, which may have lost a job that runs or has succeeded
                self._follow_to_the_end(runner.output)
            except BaseException:
                with suppress(EnvironmentFailure):
                    for each in self.manager.tagged(self.tag):
                        self.end(each.id)
                raise

    def follow(self) -> bool:
        """Ask for the application's state, log failed attempts; return True if it ended `CLIENT_TIMEOUT_S` ago.

        Raises an error of a task that further attempts would meet again.
        """
        try:
            if self.application is None:
                self.application = next(iter(self.manager.tagged(self.tag)), None)
                self._answered = time.monotonic()
                return False
            self.application = self.manager.application(self.application.id)
            self._answered = time.monotonic()
        except EnvironmentFailure:
            if time.monotonic() - self._answered > RESOURCE_MANAGER_TIMEOUT_S:
                raise
            return False
        if self.application.ended:
            self._ended = self._ended or time.monotonic()
            return time.monotonic() - self._ended > CLIENT_TIMEOUT_S
        job = self.manager.map_reduce_job(self.application.id)
        if job:
            progress = f"map {job['mapProgress']:.0f} %, reduce {job['reduceProgress']:.0f} %"
            self.note = f"{self.application.id}: {progress if job['reducesTotal'] else progress.partition(',')[0]}"
        if sum(job.get(count, 0) for count in LOST_COUNTS) > len(self.failed):  # so that few questions are asked
            known = frozenset(each.id for each in self.failed)
            for attempt in self.manager.failed_attempts(self.application.id, known):
                self.failed.append(attempt)
                self._log_failure(attempt)
        return False

    def _log_failure(self, attempt: FailedAttempt) -> None:
        status, line = cause_of(attempt)
        if is_debug():
            log(self.stage.name, f"{attempt.id} on {attempt.node}: {attempt.diagnostics}\n{attempt.error_output}")
        if attempt.state == "FAILED":
            if status in (DataError.status, UsageError.status):
                raise ERRORS[status](line)
            log(self.stage.name, f"{attempt.id} on {attempt.node} failed: {line}")

    def end(self, application: str) -> None:
        """Kill an application on the cluster, and wait until it has ended. Raises EnvironmentFailure if it does not."""
        self.manager.kill(application)
        deadline = time.monotonic() + RESOURCE_MANAGER_TIMEOUT_S
        while not self.manager.application(application).ended:
            if time.monotonic() > deadline:
                waited = f"{RESOURCE_MANAGER_TIMEOUT_S:.0f} s"
                raise EnvironmentFailure(f"{application} was killed {waited} ago, and is still running")
            time.sleep(0.2)

    def raise_failure(self, diagnostics: str) -> NoReturn:
        """Raise the cause of the job's failure: that of its last failed attempt, else the cluster's ``diagnostics``."""
        causes = [cause_of(each) for each in self.failed if each.state == "FAILED"]
        status, line = causes[-1] if causes else (EnvironmentFailure.status, cause_of_output(diagnostics))
        where = f" ({self.application.id})" if self.application else ""
        raise ERRORS.get(status, EnvironmentFailure)(f"{line}{where}")


def cause_of(attempt: FailedAttempt) -> tuple[int, str]:
    """The exit status, and the reason of a failed attempt in one line."""
    messages = re.findall(f"^{ERROR_PREFIX}(.*)$", attempt.error_output, re.MULTILINE)
    code = re.search(r"subprocess failed with code (\d+)", attempt.diagnostics)
    if "memory limit" in (diagnostics := " ".join(attempt.diagnostics.split())):
        used = re.search(r"Current usage: (.*?)[;.]? ?Killing", diagnostics)
        return EnvironmentFailure.status, (
            f"a task took more memory than its container has ({used[1] if used else 'killed by YARN'});"
            " give more with --task-memory"
        )
    if messages:
        return int(code[1]) if code else EnvironmentFailure.status, messages[-1]
    if code and (number := int(code[1]) - SIGNAL_STATUS) in set(signal.Signals):
        return EnvironmentFailure.status, f"its Python was ended by {signal.Signals(number).name}"
    last = [line for line in attempt.error_output.splitlines() if line.strip() and "log4j" not in line]
    if code and last:
        return EnvironmentFailure.status, f"its Python exited with {code[1]}: {last[-1].strip()}"
    return EnvironmentFailure.status, cause_of_output(attempt.diagnostics)


def cause_of_output(text: str) -> str:
    """The line of Hadoop's output that names the cause: see `CAUSES`."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    lines = [line for line in lines if line not in LAST_LINES]
    for pattern in CAUSES:
        found = [match[1] for line in lines if (match := re.search(pattern, line, re.IGNORECASE))]
        if found:
            return found[-1]
    return (lines or ["the cluster gives no reason"])[-1]


def upload_python(stage: Stage) -> str:
    """The URI of the containers' Python on the filesystem of the stage's root; uploaded once per version."""
    archive = cached_archive()
    folder = _home(stage) / "python"
    final = folder / archive.name
    if not final.exists():
        size = f"{archive.stat().st_size >> 20} MiB"
        log(stage.name, f"sending the tasks' Python to {final}, once for this version ({size})")
        # another host may do the same now: its archive has the same files, but not the same bytes
        with suppress(TakenError), publish_stream(final, folder.make_folder()) as output, archive.open("rb") as source:
            shutil.copyfileobj(source, output, READ_BUFFER_BYTES)
    return final.uri


def _home(stage: Stage) -> Place:
    """Our folder on the root's HDFS; for a local root on the site's default filesystem.

    Raises UsageError if that is not HDFS, EnvironmentFailure if the user has no name.
    """
    root = stage.folder if stage.folder.filesystem.scheme == "hdfs" else open_place("hdfs:///")
    return Place(root.filesystem, f"/user/{hadoop_user()}/.ringslice")

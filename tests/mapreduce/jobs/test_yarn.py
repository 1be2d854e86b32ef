"""Messages, memory and numbers of tasks of YARN jobs, from texts as Hadoop 3.4 writes them."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etl.errors import DEBUG_VARIABLE, DataError, EnvironmentFailure
from etl.hadoop.yarn_api import FailedAttempt, ResourceManager
from etl.storage.hdfs_settings import DRIVER_VARIABLE, LIBHDFS, NATIVE
from mapreduce.jobs.stage_job import worthwhile_tasks
from mapreduce.jobs.yarn import YarnJob, cause_of, cause_of_output, memory_properties

PIPE = (
    "Error: java.lang.RuntimeException: PipeMapRed.waitOutputThreads(): subprocess failed with code {}\n\tat org.apache"
)
MEMORY = """[2026-01-01]Container [pid=7,containerID=container_1_01_000002] is running 87M beyond the 'PHYSICAL' memory
limit. Current usage: 215.1 MB of 128 MB physical memory used; 2.6 GB of 268.8 MB virtual memory used. Killing it."""


@pytest.mark.parametrize(
    ("diagnostics", "error_output", "status", "line"),
    [
        (PIPE.format(1), "x\nringslice: error: a.tar is damaged\nlog4j:WARN", DataError.status, "a.tar is damaged"),
        (PIPE.format(137), "", EnvironmentFailure.status, "its Python was ended by SIGKILL"),
        (PIPE.format(127), "bash: env/bin/python: No such file", EnvironmentFailure.status, "No such file"),
        (MEMORY, "", EnvironmentFailure.status, "(215.1 MB of 128 MB physical memory used; 2.6 GB of"),
    ],
)
def test_the_cause_of_a_failed_attempt(diagnostics: str, error_output: str, status: int, line: str) -> None:
    found = cause_of(FailedAttempt("attempt_1", "FAILED", "node:8042", diagnostics, error_output))
    assert found[0] == status
    assert line in found[1]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("INFO x\nERROR StreamJob: Error Launching job : Output exists\nStreaming Command Failed!", "Output exists"),
        ("WARN a\njava.io.IOException: no room\n\tat b.c(d.java:1)\nStreaming Command Failed!", "IOException: no room"),
        (
            "Job job_1_2 failed with state FAILED due to: Application application_1_2 failed 4 times due to AM"
            " Container for appattempt_1_2_000004 exited with  exitCode: -1000\n"
            "Failing this attempt.Diagnostics: [2026-11-26 21:15:21.391]No space available in any of the local"
            " directories on node/127.0.0.1\n"
            "For more detailed output, check the application tracking page: http://localhost:8088/cluster/app Then"
            " click on links to logs of each attempt.\n. Failing the application.\n"
            "ERROR streaming.StreamJob: Job not successful!\nStreaming Command Failed!",
            "No space available in any of the local directories on node/127.0.0.1",
        ),
        ("Application application_1_2 was killed by user root at 127.0.0.1", "was killed by user root"),
        ("", "gives no reason"),
    ],
)
def test_the_cause_among_what_hadoop_printed(text: str, line: str) -> None:
    assert line in cause_of_output(text)
    assert "\n" not in cause_of_output(text)


@pytest.mark.parametrize(
    ("driver", "memory", "heap"), [(NATIVE, 512, 192), (NATIVE, 1024, 704), (NATIVE, 128, 128), (LIBHDFS, 1024, 576)]
)
def test_containers_have_room_for_the_jvm(driver: str, memory: int, heap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRIVER_VARIABLE, driver)
    properties = memory_properties(memory << 20)
    assert properties["mapreduce.map.java.opts"].split()[0] == f"-Xmx{heap}m"
    assert int(properties["mapreduce.task.io.sort.mb"]) * 3 <= heap * 2  # the old generation is two thirds
    helped = memory_properties(memory << 20, helper_bytes=800 << 20)
    assert dict(helped.items() - properties.items()) == {"mapreduce.map.memory.mb": str(memory + 800)}


def test_a_command_line_is_not_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It has the values of -D and --cmdenv; mrjob logs it below a warning."""

    def make_runner() -> None:
        for level in (logging.DEBUG, logging.INFO):
            logging.getLogger("mrjob.hadoop").log(level, "> hadoop jar -D fs.key=hunter2")
        raise KeyboardInterrupt

    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    stage: Any = SimpleNamespace(folder=SimpleNamespace(uri="x"))
    with caplog.at_level(logging.DEBUG), pytest.raises(KeyboardInterrupt):
        YarnJob(stage, 1 << 30, manager=cast(Any, None)).submit(SimpleNamespace(make_runner=make_runner))
    assert caplog.text == ""


def test_a_task_is_worth_its_jvm() -> None:
    assert worthwhile_tasks(0, 1) == 1
    assert worthwhile_tasks(10 << 30, 100_000) == 165
    assert worthwhile_tasks(40_000_000, 70_000) == 4


def test_what_answers_may_be_no_resource_manager(tmp_path: Path) -> None:
    page = tmp_path / "ws/v1/cluster/info"
    page.parent.mkdir(parents=True)
    for answer in ("<html>", "[]"):
        page.write_text(answer)
        with pytest.raises(EnvironmentFailure, match="is not a ResourceManager; correct yarn"):
            ResourceManager([tmp_path.as_uri()]).information()

"""mrjob's Hadoop runner with our own HDFS client, so that only the JVM that submits the job is started.

mrjob itself starts eight JVMs one after the other before a job is submitted.
"""

import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mrjob.fs.composite import CompositeFilesystem
from mrjob.fs.hadoop import HadoopFilesystem
from mrjob.fs.local import LocalFilesystem
from mrjob.hadoop import HadoopJobRunner
from mrjob.logs.step import _interpret_hadoop_jar_command_stderr

from etl.processes import end_with_parent
from etl.storage.place import READ_BUFFER_BYTES, open_place
from mapreduce.jobs.stage_job import POLL_INTERVAL_S


class HdfsFiles(HadoopFilesystem):
    """mrjob's operations on HDFS, without ``hadoop fs``."""

    def __init__(self, hadoop_bin: list[str], version: str) -> None:
        super().__init__(hadoop_bin)
        self._hadoop_version = version

    def exists(self, path_glob: str) -> bool:
        return open_place(path_glob).exists()

    def ls(self, path_glob: str) -> Iterator[str]:
        for info in open_place(path_glob).children(recursive=True):
            if info.is_file:
                yield open_place(path_glob).filesystem.uri(info.path)

    def mkdir(self, path: str) -> None:
        open_place(path).make_folder()

    def put(self, src: str, path: str) -> None:
        place = open_place(path)
        with open(src, "rb") as source, place.filesystem.open_new(place.path) as target:
            shutil.copyfileobj(source, target, READ_BUFFER_BYTES)

    def rm(self, path_glob: str) -> None:
        open_place(path_glob).delete()


class YarnRunner(HadoopJobRunner):
    """Runs a job on YARN. ``follow`` is called about twice a second while it runs, and may raise to end it.

    When it returns True, ``hadoop jar`` is ended.
    """

    follow: Callable[[], bool]
    output = ""  # what `hadoop jar` printed

    @functools.cached_property
    def fs(self) -> CompositeFilesystem:
        files = CompositeFilesystem()
        version = re.search(r"-(\d+(?:\.\d+)+)", Path(self._opts["hadoop_streaming_jar"]).name)
        files.add_fs("hadoop", HdfsFiles(self._opts["hadoop_bin"], version[1] if version else "3"))
        files.add_fs("local", LocalFilesystem())
        return files

    def _run_hadoop(
        self, hadoop_args: list[str], env: dict[str, str], record_callback: Callable[..., Any]
    ) -> tuple[int, dict[str, Any]]:
        """Run ``hadoop jar`` to its end, in a session of its own: mrjob's own would get Ctrl-C from the terminal."""
        del record_callback
        with tempfile.TemporaryFile() as output:
            with subprocess.Popen(
                hadoop_args,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                # There are other threads; this takes no lock of theirs, so the child cannot wait for one
                preexec_fn=functools.partial(end_with_parent, signal.SIGKILL, os.getpid()),
            ) as client:
                try:
                    while client.poll() is None and not self.follow():
                        time.sleep(POLL_INTERVAL_S)
                finally:
                    client.kill()
            output.seek(0)
            interpretation = _interpret_hadoop_jar_command_stderr(output)  # the job's id and counters
            output.seek(0)
            self.output = output.read().decode(errors="replace")
        return client.returncode, interpretation

    def _log_counters(self, log_interpretation: dict[str, Any], step_num: int) -> None:
        """Do nothing: counters go to ``run.json``."""

    def _pick_error(self, log_interpretation: dict[str, Any], step_type: str) -> None:
        """Do nothing: causes are read from the output of the attempts."""

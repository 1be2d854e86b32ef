"""A single-node Hadoop of real daemons on the loopback address, for tests to use, to disturb and to end.

What belongs to a cluster lies in one folder: configuration, data, logs, and `cluster.json`, by which another process
attaches to it.
"""

import getpass
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from etl.errors import EnvironmentFailure
from etl.hadoop.site_config import java_home
from tests.hadoop import class_archive, health, state
from tests.hadoop.configuration import LOOPBACK, named_ports, write_configuration
from tests.hadoop.distribution import copy_name_image, hadoop_home
from tests.hadoop.processes import POLL_INTERVAL_S, Process, end, spawn

DAEMONS = {"namenode": "hdfs", "datanode": "hdfs", "resourcemanager": "yarn", "nodemanager": "yarn"}
HEAP = "256m"
START_ATTEMPTS = 3
START_TIMEOUT_S = 300
PORT_TAKEN = "Address already in use"
ERROR_WORDS = ("ERROR", "FATAL", "Exception", "error:")


class PortTaken(EnvironmentFailure):
    """Another process took a port between its choice and its use."""


@dataclass
class Cluster:
    """``folder`` contains the cluster's files; ``home`` is its HADOOP_HOME."""

    folder: Path
    home: Path
    java: Path
    user: str
    ports: dict[str, int]
    _log_offsets: dict[str, int] = field(default_factory=dict, repr=False)
    _guardian: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @classmethod
    def start(cls, folder: Path, die_with_parent: bool = False) -> "Cluster":
        """Start the daemons and wait until they are ready; HDFS has the files that it had in ``folder`` before.

        With ``die_with_parent`` they end when this process does, however it does.
        """
        folder = folder.absolute()
        home, java = hadoop_home(), java_home()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for attempt in range(1, START_ATTEMPTS + 1):
            (folder / state.RECORD).unlink(missing_ok=True)
            cluster = cls(folder, home, java, getpass.getuser(), named_ports())
            try:
                if die_with_parent:
                    cluster._guardian = state.launch_guardian(folder)
                cluster._start()
                return cluster
            except PortTaken:
                cluster.stop()
                if attempt == START_ATTEMPTS:
                    raise
            except BaseException:
                cluster.stop()
                raise
        raise AssertionError

    @classmethod
    def attach(cls, folder: Path) -> "Cluster":
        """The cluster that was started in ``folder``, by whatever process, whether its daemons live or not."""
        folder = folder.absolute()
        record = state.read(folder)
        if not record:
            raise EnvironmentFailure(f"no Hadoop was started in {folder}")
        return cls(folder, Path(record["home"]), Path(record["java"]), record["user"], record["ports"])

    @classmethod
    def is_up(cls, folder: Path) -> bool:
        """True if any daemon of a cluster in ``folder`` is alive."""
        return any(process.lives for process in state.read_processes(folder.absolute()).values())

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def conf_dir(self) -> Path:
        return self.folder / "conf"

    @property
    def uri(self) -> str:
        return f"hdfs://{LOOPBACK}:{self.ports['namenode']}"

    @property
    def resource_manager(self) -> str:
        return self.web("resourcemanager")

    def web(self, daemon: str) -> str:
        """The address of a daemon's web server."""
        return f"http://{LOOPBACK}:{self.ports[f'{daemon}_web']}"

    def log(self, daemon: str) -> Path:
        return self.folder / "logs" / f"{daemon}.log"

    def environment(self) -> dict[str, str]:
        """What a user of this Hadoop has in the environment; the commands are in HADOOP_HOME/bin."""
        return {
            "HADOOP_HOME": str(self.home),
            "HADOOP_CONF_DIR": str(self.conf_dir),
            "JAVA_HOME": str(self.java),
            "HADOOP_USER_NAME": self.user,
        }

    def pid(self, daemon: str) -> int:
        return self._process(daemon).pid

    def lives(self, daemon: str) -> bool:
        return daemon in state.read_processes(self.folder) and self._process(daemon).lives

    def serves(self, daemon: str) -> bool:
        """True if a daemon does its work: the NameNode out of safe mode, the others known to their masters."""
        process = self._process(daemon)
        return process.lives and health.serves(daemon, self.web(daemon), self.resource_manager, process.started_s)

    def kill(self, daemon: str, number: int = signal.SIGKILL) -> None:
        """Send a daemon a signal; after SIGKILL it is gone on return."""
        process = self._process(daemon)
        process.send(number)
        if number == signal.SIGKILL:
            end([process], state.STOP_GRACE_S)

    def restart(self, daemon: str) -> None:
        """End a daemon where it lives, start it again at the same ports and wait until it is ready."""
        if self.lives(daemon):
            end([self._process(daemon)], state.STOP_GRACE_S)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self._spawn(daemon)
            try:
                return self.wait_for(daemon)
            except PortTaken:  # the one before may need a while to give them back
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def restart_dead(self) -> list[str]:
        """Start the daemons again that are dead; returns their names."""
        dead = [daemon for daemon in DAEMONS if not self.lives(daemon)]
        for daemon in dead:
            self.restart(daemon)
        return dead

    def wait_for(self, daemon: str, needed: Iterable[str] = ()) -> None:
        """Wait until a daemon serves; fails as soon as it, or one of ``needed``, has ended."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.serves(daemon):
            for each in {daemon, *needed}:
                if not self.lives(each):
                    self._raise_for(each)
            if time.monotonic() > deadline:
                raise EnvironmentFailure(
                    f"the {daemon} does not serve after {START_TIMEOUT_S:.0f} s: {self.log(daemon)}"
                )
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """End the daemons and their containers; HDFS' data and the logs stay."""
        state.end_processes(self.folder)
        if self._guardian is not None:
            self._guardian.communicate()
            self._guardian = None

    def yarn_applications(self) -> list[dict[str, Any]]:
        """The ResourceManager's applications, as its REST interface has them."""
        found = health.get(f"{self.resource_manager}/ws/v1/cluster/apps")
        return (found["apps"] or {}).get("app", [])

    def _start(self) -> None:
        for name in ("logs", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
        shutil.rmtree(self.folder / "yarn", ignore_errors=True)  # what an earlier cluster's applications left
        write_configuration(self.conf_dir, self.folder, self.home, self.ports)
        if not (self.folder / "name").exists():
            unfinished = self.folder / "name.tmp"
            shutil.rmtree(unfinished, ignore_errors=True)
            copy_name_image(self.home, unfinished)
            unfinished.rename(self.folder / "name")
        lists = self.folder / "classes" if class_archive.is_missing(self.home) else None
        if lists:
            lists.mkdir(exist_ok=True)
        for daemon in DAEMONS:
            self._spawn(daemon, class_archive.listing(lists, daemon) if lists else "")
        self.wait_for("namenode", DAEMONS)
        for path, permission in (("/tmp", 1777), (f"/user/{self.user}", 755)):
            query = f"op=MKDIRS&permission={permission}&user.name={self.user}"
            health.put(f"{self.web('namenode')}/webhdfs/v1{path}?{query}")
        for daemon in DAEMONS:
            self.wait_for(daemon, DAEMONS)
        if lists:
            with suppress(subprocess.TimeoutExpired):  # without it the cluster works, too
                class_archive.make(self.home, lists, self.java, self.environment())
            shutil.rmtree(lists)

    def _process(self, daemon: str) -> Process:
        """Read each time: another process may have started it again."""
        return state.read_processes(self.folder)[daemon]

    def spawn(self, daemon: str, name: str, *words: str, options: str = "") -> Process:
        """Start a daemon with more ``words``, and ``options`` of its JVM; its log has this ``name``."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL", "TZ") if name in os.environ}
        more = {
            "HADOOP_LOG_DIR": str(self.folder / "logs"),
            "HADOOP_HEAPSIZE": HEAP,
            "HADOOP_OPTS": f"-Djava.io.tmpdir={self.folder / 'tmp'} -Dhadoop.root.logger=INFO,console {options}",
            state.MARK: str(self.folder),
        }
        program = str(self.home / "bin" / DAEMONS[daemon])
        return spawn([program, daemon, *words], kept | self.environment() | more, self.folder, self.log(name))

    def _spawn(self, daemon: str, options: str = "") -> None:
        log = self.log(daemon)
        self._log_offsets[daemon] = log.stat().st_size if log.exists() else 0
        process = self.spawn(daemon, daemon, options=options)
        record = {"home": str(self.home), "java": str(self.java), "user": self.user, "ports": self.ports}
        state.write(self.folder, record, state.read_processes(self.folder) | {daemon: process})

    def _raise_for(self, daemon: str) -> NoReturn:
        with self.log(daemon).open("rb") as log:
            log.seek(self._log_offsets.get(daemon, 0))
            text = log.read().decode(errors="replace")
        if PORT_TAKEN in text:
            raise PortTaken(f"the {daemon} found a port taken: {self.log(daemon)}")
        lines = text.strip().splitlines() or ["its log is empty"]
        cause = next((line for line in lines if any(word in line for word in ERROR_WORDS)), lines[-1])
        raise EnvironmentFailure(f"the {daemon} ended ({cause.strip()}). Read its log: {self.log(daemon)}")

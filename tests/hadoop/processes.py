"""Processes by id and start time, so that a number that another process has by now is not taken for ours."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

POLL_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Process:
    """``started`` is in clock ticks since the machine's start, as proc(5) has it."""

    pid: int
    started: int

    @classmethod
    def find(cls, pid: int) -> "Process | None":
        """The process that has this id now; None where there is none, or only its exit status is left of it."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def started_s(self) -> float:
        """The time it started, in seconds since the epoch."""
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + self.started / os.sysconf("SC_CLK_TCK")

    @property
    def lives(self) -> bool:
        _reap(self.pid)
        return Process.find(self.pid) == self

    def send(self, number: int) -> None:
        if self.lives:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass


def spawn(words: list[str], environment: Mapping[str, str], folder: Path, log: Path) -> Process:
    """Start a command in a session of its own, in ``folder``, its output appended to ``log``."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    started.returncode = 0  # as if it had ended: it outlives this object, which would warn of that
    return Process.find(started.pid) or Process(started.pid, 0)


def end(processes: list[Process], grace_s: float) -> None:
    """Send SIGTERM to processes, and SIGKILL to those that are alive after ``grace_s``."""
    for process in processes:
        process.send(signal.SIGTERM)
    if not _gone(processes, grace_s):
        for process in processes:
            process.send(signal.SIGKILL)
        _gone(processes, 10)


def find_all(is_wanted: Callable[[list[bytes], list[bytes]], bool]) -> list[Process]:
    """The processes whose command line and environment ``is_wanted`` accepts."""

    def is_found(entry: Path) -> bool:
        words, environment = ((entry / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        return is_wanted(words, environment)

    return _find(is_found)


def find_working_in(folder: Path) -> list[Process]:
    """The processes whose working directory is ``folder`` or below it, even if it was removed."""
    return _find(lambda entry: f"{os.readlink(entry / 'cwd')}/".startswith((f"{folder}/", f"{folder} (deleted)/")))


def _find(is_found: Callable[[Path], bool]) -> list[Process]:
    """The processes whose folder in /proc ``is_found`` accepts."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        process = Process.find(int(entry.name))
        try:
            if is_found(entry) and process is not None:
                found.append(process)
        except OSError:  # ended meanwhile, or another user's
            continue
    return found


def _gone(processes: list[Process], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(process.lives for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # not this process' child
        pass

"""A process that ends what a test has started once the test's process has ended, whether by a signal or in order.

It is a process of its own, because neither kill -9 nor SIGTERM lets pytest clean up, and PR_SET_PDEATHSIG does not
reach what a service has started. It waits for the end of its standard input, whose other end only the test has.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.hadoop.processes import POLL_INTERVAL_S, Process
from tests.lib.commands import REPOSITORY


class Guardian:
    """Removes ``folder``, too, which a user of its own has written."""

    def __init__(self, folder: str) -> None:
        words = [sys.executable, "-m", "tests.airflow_dags.guardian", folder]
        self._process = subprocess.Popen(
            words, cwd=REPOSITORY, stdin=subprocess.PIPE, start_new_session=True, text=True, bufsize=1
        )

    def watch(self, leader: int) -> None:
        """Have it end the session of this process."""
        assert self._process.stdin is not None
        found = Process.find(leader) or Process(leader, 0)
        print(found.pid, found.started, file=self._process.stdin)

    def end(self) -> None:
        """End what is left of the sessions."""
        self._process.communicate()


def _kill_session(leader: Process) -> bool:
    """Kill the processes of a session; True if there were any."""
    now = Process.find(leader.pid)
    found = _of_session(leader.pid) if now in (None, leader) else []
    for each in found:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    return bool(found)


def _of_session(leader: int) -> list[int]:
    """The processes of a session that live; proc(5) has its number in the sixth field."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, *_, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def main(folder: str) -> None:
    leaders = [Process(*map(int, line.split())) for line in sys.stdin]
    for leader in leaders:
        while _kill_session(leader):
            time.sleep(POLL_INTERVAL_S)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

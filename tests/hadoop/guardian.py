"""Ends a cluster when none of its users live any more, however they ended.

A process of its own (`python -m tests.hadoop guard FOLDER`), since neither kill -9 nor Ctrl-C lets a user clean up.
PR_SET_PDEATHSIG would not do: it looks at one parent, at its thread even, and does not reach YARN's containers.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hadoop.distribution import locked
from tests.hadoop.processes import Process, spawn
from tests.hadoop.state import end_processes

POLL_INTERVAL_S = 0.5
USERS = "users.json"
REPOSITORY = Path(__file__).parents[2]


def join(folder: Path, user: Process) -> None:
    """Have the cluster kept for ``user`` too."""
    with _users(folder) as users:
        users.add(user)


def leave(folder: Path, user: Process) -> int:
    """No longer keep the cluster for ``user``; the number of those who still live and use it."""
    with _users(folder) as users:
        users.discard(user)
        return len(users)


def forget_users(folder: Path) -> None:
    if (folder / USERS).exists():
        with _users(folder) as users:
            users.clear()


def launch(folder: Path) -> None:
    """Start the guardian of a cluster that has a user."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-m", "tests.hadoop", "guard", "--folder", str(folder)]
    spawn(words, environment, Path("/"), folder / "guardian.log")


def guard(folder: Path) -> None:
    """Wait until no user lives, then end the cluster."""
    while folder.exists():
        with _users(folder) as users:  # held while it ends, so that nobody joins what is ending
            if not users:
                return end_processes(folder)
        time.sleep(POLL_INTERVAL_S)
    end_processes(folder)


@contextmanager
def _users(folder: Path) -> Iterator[set[Process]]:
    """The users that live; what the block makes of them is kept."""
    path = folder / USERS
    with locked(path.with_suffix(".lock")):
        known = json.loads(path.read_text()) if path.exists() else []
        users = {user for user in (Process(*each) for each in known) if user.lives}
        yield users
        kept = [[user.pid, user.started] for user in users]
        if kept != known:
            unfinished = path.with_suffix(".tmp")
            unfinished.write_text(json.dumps(kept) + "\n")
            unfinished.rename(path)

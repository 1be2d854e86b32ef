"""Ends a cluster when its user does, however that ends.

A process of its own (`python -m tests.hadoop guard`), because neither kill -9 nor Ctrl-C lets a user clean up. It waits
for the end of its standard input, whose other end only the user has. PR_SET_PDEATHSIG does not reach YARN's containers.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.hadoop.state import end_processes

REPOSITORY = Path(__file__).parents[2]


def launch(folder: Path) -> "subprocess.Popen[bytes]":
    """Start the guardian of the cluster in ``folder``; this process is the user."""
    words = [sys.executable, "-m", "tests.hadoop", "guard", "--folder", str(folder)]
    with (folder / "guardian.log").open("ab") as log:
        return subprocess.Popen(
            words,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def guard(folder: Path) -> None:
    """Wait until the user is gone, then end the cluster."""
    sys.stdin.buffer.read()
    end_processes(folder)

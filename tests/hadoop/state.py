"""A cluster's folder as other processes find it: its record, `cluster.json`, its own processes, and their guardian.

A test's scheduler of Airflow has a guardian, too.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hadoop.processes import Process, end, find_all, find_working_in
from tests.lib.commands import REPOSITORY

RECORD = "cluster.json"
MARK = "RINGSLICE_HADOOP_FOLDER"  # in the environment of the daemons and, by configuration.py, of their containers
STOP_GRACE_S = 5.0
SWEEPS = 3


def read(folder: Path) -> dict[str, Any]:
    """The record; empty where there is none."""
    try:
        return json.loads((folder / RECORD).read_text())
    except FileNotFoundError:
        return {}


def read_processes(folder: Path) -> dict[str, Process]:
    return {name: Process(*each) for name, each in read(folder).get("processes", {}).items()}


def write(folder: Path, cluster: Mapping[str, Any], processes: Mapping[str, Process]) -> None:
    """Write the record of a cluster and the daemons' processes by their names."""
    record = {**cluster, "processes": {name: [each.pid, each.started] for name, each in processes.items()}}
    unfinished = folder / f"{RECORD}.{os.getpid()}"
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.rename(folder / RECORD)


def end_processes(folder: Path) -> None:
    """End the daemons of the cluster in ``folder``, and what their containers run."""
    end(list(read_processes(folder).values()), STOP_GRACE_S)
    for _ in range(SWEEPS):  # again, since one that is about to start another may be ended too late
        if left := find_left(folder):
            end(left, 0)


def find_left(folder: Path) -> list[Process]:
    """The daemons and what their containers run, found by the mark, or by YARN's scripts, which start without it.

    Airflow's workers write their title over their environment; they are found by their working directory.
    """
    mark, scripts = f"{MARK}={folder}".encode(), f"{folder}/yarn/local/".encode()

    def is_left(words: list[bytes], environment: list[bytes]) -> bool:
        return mark in environment or (words[0].endswith(b"bash") and any(each.startswith(scripts) for each in words))

    return [*dict.fromkeys([*find_all(is_left), *find_working_in(folder)])]


def launch_guardian(folder: Path, data: Path | None = None) -> "subprocess.Popen[bytes]":
    """Start what ends all with the mark of ``folder``, and deletes ``data``, when its user, this process, ends.

    A process of its own, because neither kill -9 nor Ctrl-C lets a user clean up. It waits for the end of its standard
    input, whose other end only the user has. PR_SET_PDEATHSIG does not reach YARN's containers.
    """
    with (folder / "guardian.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.hadoop.state", folder, data or ""],
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


if __name__ == "__main__":
    sys.stdin.buffer.read()  # until the user is gone
    end_processes(Path(sys.argv[1]))
    if sys.argv[2]:
        shutil.rmtree(sys.argv[2], ignore_errors=True)

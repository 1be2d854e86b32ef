#!/usr/bin/env python3
"""A rank that takes steps with the others, watched as a trainer's is; one of them fails.

    horovodrun -np 3 tests/lib/ranks/watched_ring.py FOLDER TIMEOUT_S RANK KIND [--elastic]

Steps keep together through files in FOLDER/step-N, because Horovod takes half a minute to load.
At step FATAL_STEP each rank writes its process number to FOLDER/RANK.pid.
"""

import os
import signal
import time
from itertools import count
from pathlib import Path

import click

from etl.storage.place import open_place
from train.monitor.heartbeat import READING
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank, with_monitor

FATAL_STEP, STEP_S = 20, 0.1
SLICE = "train-00003-of-00008"


def fail(kind: str) -> None:
    """What the failing rank does in its step; nothing if it is to be interrupted."""
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "sleeps":
        time.sleep(3600)
    elif kind == "raises":
        raise RuntimeError("no such thing")


@click.command()
@click.argument("folder", type=Path)
@click.argument("timeout_s", type=float)
@click.argument("failing", type=int)
@click.argument("kind")
@click.option("--elastic", is_flag=True)
@with_monitor
def command(monitor: Monitor, /, folder: Path, timeout_s: float, failing: int, *, kind: str, elastic: bool) -> None:
    """Take steps until one rank fails."""
    monitor.start(timeout_s, elastic)
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    monitor.joined(rank, size)
    monitor.open_log(open_place(str(folder / "run")))
    for step in count():
        monitor.phase(READING, 1, step)
        monitor.progress(SLICE, 100 * step)
        time.sleep(STEP_S)
        if step == FATAL_STEP:
            (folder / f"{rank}.pid").write_text(str(os.getpid()))
            if rank == failing:
                fail(kind)
        monitor.phase("stepping", 1, step)
        met = folder / f"step-{step}"
        met.mkdir(exist_ok=True)
        (met / str(rank)).touch()
        while len(os.listdir(met)) < size:
            time.sleep(STEP_S / 10)


if __name__ == "__main__":
    run_rank(command, "watched_ring.py", "--resume goes on")

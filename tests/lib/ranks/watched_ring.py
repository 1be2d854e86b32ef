#!/usr/bin/env python3
"""A rank that goes from step to step with the others, watched as a trainer's is; one of them comes to grief.

    horovodrun -np 3 tests/lib/ranks/watched_ring.py FOLDER TIMEOUT_S RANK GRIEF [--elastic]

Steps keep together through files, because Horovod takes half a minute to load.
A rank that is well on its way writes its process number to FOLDER/RANK.pid.
"""

import os
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import click

from etl.errors import DataError
from etl.storage.place import open_place
from train.monitor.heartbeat import READING
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank, with_monitor

FATAL_STEP = 20
STEP_S = 0.1
SLICE = "train-00003-of-00008"


def come_to_grief(kind: str) -> None:
    """What the unlucky rank does in its step; where it is to be interrupted, nothing."""
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "sleeps":
        time.sleep(3600)
    elif kind == "raises":
        raise DataError(f"{SLICE} is damaged at offset 1,234")


def files_ring(folder: Path, monitor: Monitor) -> Callable[[int], None]:
    """Meets the others by files that tell the step each is in."""
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    monitor.joined(rank, size)

    def meet(step: int) -> None:
        (folder / f"{rank}-{step}").touch()
        while not all((folder / f"{other}-{step}").exists() for other in range(size)):
            time.sleep(STEP_S / 10)

    return meet


@click.command()
@click.argument("folder", type=Path)
@click.argument("timeout_s", type=float)
@click.argument("unlucky", type=int)
@click.argument("kind")
@click.option("--elastic", is_flag=True)
@with_monitor
def command(monitor: Monitor, /, folder: Path, timeout_s: float, unlucky: int, *, kind: str, elastic: bool) -> None:
    """Take steps until one rank comes to grief."""
    monitor.start(timeout_s, elastic)
    meet = files_ring(folder, monitor)
    rank = int(os.environ["HOROVOD_RANK"])
    monitor.open_log(open_place(str(folder / "run")))
    for step in count():
        monitor.phase(READING, 1, step)
        monitor.progress(SLICE, 100 * step)
        time.sleep(STEP_S)
        if step == FATAL_STEP:
            (folder / f"{rank}.pid").write_text(str(os.getpid()))
            if rank == unlucky:
                come_to_grief(kind)
        monitor.phase("stepping", 1, step)
        meet(step)


if __name__ == "__main__":
    run_rank(command, "watched_ring.py", "--resume goes on")

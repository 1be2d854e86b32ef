#!/usr/bin/env python3
"""A rank without TensorFlow, watched as a trainer's is, for rings of many processes; one of them comes to grief.

    horovodrun -np 64 -H … tests/lib/ranks/many_ranks.py FOLDER TIMEOUT_S RANK GRIEF

All keep together by files in FOLDER, a folder for each step.
"""

import os
import time
from itertools import count
from pathlib import Path

import click

from etl.storage.place import open_place
from tests.lib.ranks.watched_ring import come_to_grief
from train.monitor.heartbeat import READING
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank, with_monitor

FATAL_STEP = 8
STEP_S, POLL_S = 1.0, 0.1


@click.command()
@click.argument("folder", type=Path)
@click.argument("timeout_s", type=float)
@click.argument("unlucky", type=int)
@click.argument("kind")
@with_monitor
def command(monitor: Monitor, /, folder: Path, timeout_s: float, unlucky: int, kind: str) -> None:
    """Take steps until one rank comes to grief."""
    monitor.start(timeout_s)
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    monitor.joined(rank, size)
    monitor.open_log(open_place(str(folder / "run")))
    for step in count(1):
        monitor.phase(READING, 1, step)
        time.sleep(STEP_S)
        if step == FATAL_STEP and rank == unlucky:
            come_to_grief(kind)
        monitor.phase("stepping")
        met = folder / f"step-{step}"
        met.mkdir(exist_ok=True)
        (met / str(rank)).touch()
        while len(os.listdir(met)) < size:
            time.sleep(POLL_S)


if __name__ == "__main__":
    run_rank(command, "many_ranks.py", "--resume goes on")

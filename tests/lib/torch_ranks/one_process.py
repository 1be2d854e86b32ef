#!/usr/bin/env python3
"""train/main.py in one process that is fed, at each step, the batches of $RANKS ranks: what ddp must equal."""

import os

from tests.lib.ranks.fed_by_all import fed_by_all
from train.config.settings import Settings, command
from train.loop import train
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank
from train.strategies.ddp import run_ddp


def start(settings: Settings, monitor: Monitor) -> None:
    with fed_by_all(int(os.environ["RANKS"])):
        run_ddp(lambda strategy: train(settings, strategy, monitor), monitor, settings.device, 0)


if __name__ == "__main__":
    run_rank(command(start), "train/main.py", "")

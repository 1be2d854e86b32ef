#!/usr/bin/env python3
"""Train a model on slices, one process for each rank.

    horovodrun -np 8 train/main.py
    horovodrun -np 2 train/main.py --data data/flowers --model cnn --epochs 20

This file is what a rank is started with: it reads the command line, takes its share of the cores, and only then loads
TensorFlow. The loop itself is in train/loop.py, to be read from top to bottom.
"""

if __name__ == "__main__":  # before packages of ours are imported
    from ringslice_entry import prepare

    prepare()

import os
from typing import NoReturn

from etl.errors import UsageError
from train.config.settings import MIRRORED, MULTI_WORKER, Settings, command
from train.monitor.monitor import Monitor
from train.monitor.rank_process import is_elastic, run_rank
from train.parallel.cluster import workers_of
from train.parallel.startup import prepare_import


def require_strategy(strategy: str) -> None:
    """Raise UsageError if ``$TF_CONFIG`` has several workers, and the strategy is one that does not join them."""
    if strategy != MULTI_WORKER and len(workers_of(os.environ.get("TF_CONFIG", ""))) > 1:
        raise UsageError(f"--strategy {strategy}: TF_CONFIG has several workers. Give --strategy {MULTI_WORKER}")


def start(settings: Settings, monitor: Monitor) -> None:
    """Load TensorFlow with this rank's thread budget in force, and run the loop on the ranks that were started."""
    monitor.start(settings.stall_timeout_s, is_elastic())
    with prepare_import():
        from train.loop import train
        from train.strategies.elastic import run_in_rings
        from train.strategies.horovod_ring import run_on_ranks
        from train.strategies.mirrored import run_mirrored
        from train.strategies.multi_worker import run_workers
    device = settings.device
    require_strategy(settings.strategy)
    if settings.strategy == MIRRORED:
        run_mirrored(lambda strategy: train(settings, strategy, monitor), monitor, device, settings.replicas)
    elif settings.strategy == MULTI_WORKER:
        run_workers(lambda strategy: train(settings, strategy, monitor), monitor, device)
    elif is_elastic():
        elastic = settings.of_elastic()
        run_in_rings(lambda strategy: train(elastic, strategy, monitor), monitor, device)
    else:
        run_on_ranks(lambda strategy: train(settings, strategy, monitor), monitor, device)


def main() -> NoReturn:
    """Entry point of a rank that trains."""
    run_rank(command(start), "train/main.py", "--resume goes on from the last checkpoint")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Train a model on slices, one process for each rank.

    horovodrun -np 8 train/main.py
    horovodrun -np 2 train/main.py --data data/flowers --model cnn --epochs 20
    train/launch.py --workers 4 --servers 2 train/main.py --strategy parameter-server
    torchrun --nproc-per-node 8 train/main.py --strategy ddp

This file is what a rank is started with: it reads the command line, takes its share of the cores, and only then loads
TensorFlow or PyTorch. The loop itself is in train/loop.py, to be read from top to bottom.
"""

if __name__ == "__main__":  # before packages of ours are imported
    from ringslice_entry import prepare

    prepare()

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from etl.errors import UsageError
from train.config.run_options import command
from train.config.settings import (
    ASYNCHRONOUS,
    AUTO,
    DDP,
    HOROVOD,
    MIRRORED,
    MULTI_WORKER,
    OF_TORCH,
    PIPELINE,
    SYNCHRONOUS,
    TENSOR_PARALLEL,
    TORCH,
    Settings,
)
from train.monitor.launcher import is_torchrun, launched_size
from train.monitor.monitor import Monitor
from train.monitor.rank_process import is_elastic, run_rank
from train.parallel.cluster import CHIEF, WORKERS, require_servers, several_in
from train.parallel.endings import REMEDIES
from train.parallel.startup import prepare_import, require_framework

if TYPE_CHECKING:
    from train.strategies import Strategy


def require_strategy(strategy: str) -> None:
    """Raise UsageError if a launcher started several processes that the strategy does not join."""
    found = several_in(os.environ.get("TF_CONFIG", ""))
    joining = [MULTI_WORKER] if found == WORKERS else [SYNCHRONOUS, ASYNCHRONOUS]
    if found and strategy not in joining:
        raise UsageError(f"--strategy {strategy}: TF_CONFIG has {found}. Give --strategy {joining[0]}")
    launcher, fitting = ("torchrun", OF_TORCH) if is_torchrun() else ("horovodrun", (HOROVOD,))
    if launched_size() > 1 and strategy not in fitting:
        remedy = "Start it" if found else f"Give --strategy {fitting[0]}, or start it"
        raise UsageError(
            f"--strategy {strategy}: {launcher} started {launched_size()} processes. {remedy} by the launcher of that"
            " strategy (docs/strategies.md)"
        )


def start(settings: Settings, monitor: Monitor) -> None:
    """Load the framework with this rank's thread budget in force, and run the loop on the ranks that were started."""
    require_strategy(settings.strategy)
    if not settings.has_servers or require_servers(os.environ.get("TF_CONFIG", "")).role == CHIEF:
        monitor.start(settings.stall_timeout_s, is_elastic())
    if settings.has_servers or settings.strategy == MULTI_WORKER:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what it logs of a lost worker, or a port that is taken
    with prepare_import(), require_framework(f"--strategy {settings.strategy}"):
        run_strategy = import_strategy(settings, monitor)
    run_strategy()


def import_for_evaluation(
    strategy: str, monitor: Monitor, stall_timeout_s: float
) -> Callable[[Callable[["Strategy"], None]], None]:
    """Import what is needed to evaluate by `HOROVOD` or `DDP`; returns a function that calls another on its ranks."""
    if found := several_in(os.environ.get("TF_CONFIG", "")):
        raise UsageError(
            f"TF_CONFIG has {found}, and an evaluation is one process without it, or ranks of horovodrun or torchrun"
        )
    require_strategy(strategy)
    with prepare_import(), require_framework(f"--strategy {strategy}"):
        if strategy == DDP:
            from train.strategies.ddp import run_ddp

            return lambda work: run_ddp(work, monitor, AUTO, stall_timeout_s)
        from train.strategies.horovod_ring import run_on_ranks

        return lambda work: run_on_ranks(work, monitor, AUTO)


def import_strategy(settings: Settings, monitor: Monitor) -> Callable[[], None]:
    """Import what a strategy needs; returns a function that runs the loop with it."""
    from train.loop import train

    def work(strategy: "Strategy") -> None:
        train(settings, strategy, monitor)

    device = settings.device
    if settings.framework == TORCH:
        return import_torch_strategy(settings, work, monitor)
    if settings.strategy == MIRRORED:
        from train.strategies.mirrored import run_mirrored

        return lambda: run_mirrored(work, monitor, device, settings.replicas)
    if settings.strategy == MULTI_WORKER:
        from train.strategies.multi_worker import run_workers

        return lambda: run_workers(work, monitor, device)
    if settings.has_servers:
        from train.strategies.parameter_server import run_with_servers

        return lambda: run_with_servers(work, monitor)
    if is_elastic():
        from train.strategies.elastic import run_in_rings

        elastic = settings.of_elastic()
        return lambda: run_in_rings(lambda strategy: train(elastic, strategy, monitor), monitor, device)
    from train.strategies.horovod_ring import run_on_ranks

    return lambda: run_on_ranks(work, monitor, device)


def import_torch_strategy(
    settings: Settings, work: Callable[["Strategy"], None], monitor: Monitor
) -> Callable[[], None]:
    """As `import_strategy`, of a strategy of PyTorch."""
    from train.strategies.ddp import Ddp, Make, run_ddp

    make: Make = Ddp
    if settings.strategy == PIPELINE:
        from train.strategies.pipeline import Pipeline

        make = partial(Pipeline, model_ranks=settings.model_ranks)
    if settings.strategy == TENSOR_PARALLEL:
        from train.strategies.tensor_parallel import TensorParallel

        make = partial(TensorParallel, model_ranks=settings.model_ranks)
    return lambda: run_ddp(work, monitor, settings.device, settings.stall_timeout_s, make)


if __name__ == "__main__":
    run_rank(command(start), "train/main.py", REMEDIES["main.py"])

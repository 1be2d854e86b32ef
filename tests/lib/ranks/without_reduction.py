#!/usr/bin/env python3
"""train/main.py with a strategy of `tf.distribute` that reduces no gradients: a negative control.

Each process applies the gradients of its first copy of the model; a chief applies those of its first worker.
"""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import tensorflow as tf

from train.config.settings import MIRRORED, Settings, command
from train.loop import train
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank
from train.strategies import parameter_server_trainer
from train.strategies.mirrored import MirroredReplicas, run_mirrored
from train.strategies.multi_worker import run_workers
from train.strategies.parameter_server import run_with_servers


def first_of_each(replicas: MirroredReplicas, gradients: Sequence[Any], half: bool = False) -> list[tf.Tensor]:
    return [replicas.local_values(each)[0] for each in gradients]


def start(settings: Settings, monitor: Monitor) -> None:
    def work(strategy: Any) -> None:
        train(settings, strategy, monitor)

    if settings.has_servers:
        run_with_servers(work, monitor)
    elif settings.strategy == MIRRORED:
        run_mirrored(work, monitor, settings.device, settings.replicas)
    else:
        run_workers(work, monitor, settings.device)


if __name__ == "__main__":
    mock.patch.object(MirroredReplicas, "average_gradients", first_of_each).start()
    mock.patch.object(parameter_server_trainer, "add", lambda some, others: some).start()
    run_rank(command(start), "train/main.py", "--resume goes on from the last checkpoint")

#!/usr/bin/env python3
"""train/main.py with a strategy of `tf.distribute` that reduces no gradients: a negative control.

Each process applies the gradients of its first copy of the model; a chief applies those of its first worker.
"""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import tensorflow as tf

from train.config.run_options import command
from train.main import start
from train.monitor.rank_process import run_rank
from train.strategies import parameter_server_trainer
from train.strategies.mirrored import MirroredReplicas


def first_of_each(replicas: MirroredReplicas, gradients: Sequence[Any], half: bool = False) -> list[tf.Tensor]:
    return [replicas.local_values(each)[0] for each in gradients]


if __name__ == "__main__":
    mock.patch.object(MirroredReplicas, "average_gradients", first_of_each).start()
    mock.patch.object(parameter_server_trainer, "added", lambda some, others: some).start()
    run_rank(command(start), "train/main.py", "--resume goes on from the last checkpoint")

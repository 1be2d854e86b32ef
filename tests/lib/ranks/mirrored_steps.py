#!/usr/bin/env python3
"""train/main.py with --strategy mirrored, in which KIND is left out of the steps, or nothing if it is "whole".

    tests/lib/ranks/mirrored_steps.py KIND OPTION …

KIND "reduction" is a negative control: each step applies the gradients of the first copy of the model.
"""

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from train.config.settings import Settings, command
from train.loop import train
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank
from train.strategies.mirrored import MirroredReplicas, run_mirrored

KIND = sys.argv.pop(1)


class WithoutReduction(MirroredReplicas):
    """Takes the first copy's gradients."""

    def average_gradients(self, gradients: Sequence[Any], half: bool = False) -> list[tf.Tensor]:
        return [self.local_values(each)[0] for each in gradients]


def start(settings: Settings, monitor: Monitor) -> None:
    replicas = {"whole": MirroredReplicas, "reduction": WithoutReduction}[KIND]

    def work(strategy: Any) -> None:
        strategy._replicas = replicas(strategy._replicas._strategy)
        train(settings, strategy, monitor)

    run_mirrored(work, monitor, settings.device, settings.replicas)


if __name__ == "__main__":
    run_rank(command(start), "train/main.py", "--resume goes on from the last checkpoint")

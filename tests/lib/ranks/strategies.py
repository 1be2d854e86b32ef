"""Strategies to compare Horovod with: one process without a ring, and rings that leave something out."""

from collections.abc import Sequence

import tensorflow as tf

from tests.lib.ranks.threads import Ring, ThreadRank
from train.parallel.strategy import Horovod


class Alone(ThreadRank):
    """One process without a ring."""

    def __init__(self) -> None:
        super().__init__(Ring(1), 0)


class LocalStatistics(Horovod):
    """Horovod without the all-reduce of batch norm's statistics."""

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor


class Identity(LocalStatistics):
    """Horovod without the all-reduce of gradients and of batch norm's statistics."""

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(tensors)

    def average_gradients(self, gradients: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        return list(gradients)

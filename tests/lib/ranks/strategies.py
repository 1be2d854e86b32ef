"""Strategies to compare Horovod with: one process without a ring, and rings that leave something out."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy.typing as npt
import tensorflow as tf

from train.parallel.strategy import Horovod, Number

T = TypeVar("T")


class Alone:
    """One process without a ring."""

    rank, size = 0, 1

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(tensors)

    def average_gradients(self, gradients: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        assert not half
        return list(gradients)

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor

    def sum(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def sum_array(self, array: npt.NDArray[Number]) -> npt.NDArray[Number]:
        return array

    def max_array(self, array: npt.NDArray[Number]) -> npt.NDArray[Number]:
        return array

    def broadcast(self, variables: Sequence[Any], root: int = 0) -> None:
        pass

    def gather(self, value: T) -> list[T]:
        return [value]

    def from_root(self, make: Callable[[], T]) -> T:
        return make()

    def leave(self) -> None:
        pass


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

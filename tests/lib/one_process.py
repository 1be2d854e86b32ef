"""A way of training without other ranks and without Horovod: see `train.parallel.strategy.Strategy`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")


class OneProcess:
    """The one rank there is. It joins no ring, so any number of them may come one after the other."""

    rank = 0
    size = 1

    def average(self, tensors: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        if not half:
            return list(tensors)
        return [tf.cast(tf.cast(each, tf.float16), each.dtype) if each.shape.rank else each for each in tensors]

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor

    def sum(self, values: Sequence[float]) -> list[float]:
        return [float(value) for value in values]

    def broadcast(self, variables: Sequence[Any], root: int = 0) -> None:
        del variables, root

    def gather(self, value: T) -> list[T]:
        return [value]

    def from_root(self, make: Callable[[], T]) -> T:
        return make()

    def leave(self) -> None:
        """No other rank waits for this one."""

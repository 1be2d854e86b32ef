"""Ranks as threads of this process: a `Collective` without Horovod, for tests of what is done with one."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from train.parallel.collective import Collective, Number, Operation
from train.tf_backend.steps import Replicas

T = TypeVar("T")
TIMEOUT_S = 60.0


class Ring:
    """What ``size`` ranks exchange."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=TIMEOUT_S)


class ThreadRank(Replicas, Collective):
    """One of them, which has a copy of the model, too. What several ranks reduce must be computed eagerly."""

    def __init__(self, ring: Ring, rank: int) -> None:
        self._ring = ring
        self.rank, self.size = rank, ring.size

    def gather_object(self, value: T) -> list[T]:
        self._ring.values[self.rank] = value
        self._ring.barrier.wait()
        values = list(self._ring.values)
        self._ring.barrier.wait()  # before anyone puts its next one there
        return values

    def all_reduce(self, array: npt.NDArray[Number], operation: Operation = "sum") -> npt.NDArray[Number]:
        arrays = self.gather_object(array.copy())
        return np.sum(arrays, axis=0, dtype=array.dtype) if operation == "sum" else np.max(arrays, axis=0)

    def close(self) -> None:
        pass

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        ranks = self.gather_object([tf.convert_to_tensor(each) for each in tensors])
        return [tf.add_n(each) / self.size for each in map(list, zip(*ranks, strict=True))]

    def average_gradients(self, gradients: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        del half
        return self.average(gradients)

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.add_n(self.gather_object(tensor))

    def broadcast(self, variables: Sequence[Any], root: int) -> None:
        values = self.broadcast_object([each.numpy() for each in variables], root)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def on_ranks(size: int, work: Callable[[ThreadRank], T]) -> list[T]:
    """What ``work`` returns on each rank. Raises what the first rank that failed raised."""
    ring = Ring(size)

    def of_rank(rank: int) -> T:
        try:
            return work(ThreadRank(ring, rank))
        except BaseException:
            ring.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(of_rank, rank) for rank in range(size)]
        for future in futures:
            with suppress(threading.BrokenBarrierError):  # another rank's failure, which is to be raised
                future.result()
        return [future.result() for future in futures]

"""What differs between ways of training in parallel, behind one small interface; Horovod is the one there is."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from etl.errors import EnvironmentFailure, RingsliceError

T = TypeVar("T")


class RootFailed(RingsliceError):
    """Rank 0 failed and said why; this rank ends with the same status, without a word."""

    told = True

    def __init__(self, status: int) -> None:
        super().__init__("rank 0 failed")
        self.status = status


class PeerLost(EnvironmentFailure):
    """Another rank has ended in the middle of things."""


@contextmanager
def telling_lost_peers() -> Iterator[None]:
    """Turn what Horovod raises on the ranks that are left into one line, told by rank 0."""
    try:
        yield
    except (tf.errors.OpError, HorovodInternalError) as error:
        if "horovod" not in f"{type(error)} {error}".lower():
            raise
        lost = PeerLost(
            "another rank has ended (its own line, or horovodrun's, says why), so this one ends too;"
            " --resume goes on from the last checkpoint"
        )
        lost.told = os.environ.get("HOROVOD_RANK", "0") != "0"
        raise lost from error


class Strategy(Protocol):
    """``rank`` counts the processes from 0 to before ``size``."""

    rank: int
    size: int

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The mean over all ranks of each tensor, in one grouped all-reduce."""
        ...

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks, in float64."""
        ...

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give every rank the values that rank 0 has for these Keras variables."""
        ...

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank."""
        ...

    def from_root(self, make: Callable[[], T]) -> T:
        """What ``make`` returns on rank 0, on every rank. Where it raises there, every rank raises."""
        ...

    def leave(self) -> None:
        """Part from the other ranks, which are about to leave too."""
        ...


class Horovod:
    """Ranks in a ring, started by ``horovodrun``; alone where there is none."""

    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(hvd.grouped_allreduce(list(tensors), op=hvd.Average))

    def sum(self, values: Sequence[float]) -> list[float]:
        return [float(value) for value in hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum).numpy()]

    def broadcast(self, variables: Sequence[Any]) -> None:
        # hvd.broadcast_variables does not know Keras 3's, and leaves files of autograph's in $TMPDIR
        for variable in variables:
            variable.assign(hvd.broadcast(tf.convert_to_tensor(variable.value), root_rank=0))

    def gather(self, value: T) -> list[T]:
        return list(hvd.allgather_object(value))

    def from_root(self, make: Callable[[], T]) -> T:
        """Rank 0's value or failure goes to all ranks in one broadcast."""
        value: T | None = None
        error: Exception | None = None
        if self.rank == 0:
            try:
                value = make()
            except Exception as raised:  # told to all ranks first, then raised as it is
                error = raised
        failed, value = hvd.broadcast_object((getattr(error, "status", 1) if error else None, value), root_rank=0)
        if error is not None:
            raise error
        if failed is not None:
            raise RootFailed(failed)
        return value

    def leave(self) -> None:
        """Without it, ranks that are left tell of a lost connection."""
        hvd.shutdown()


def root_first(strategy: Strategy, make: Callable[[], T]) -> T:
    """What ``make`` returns on each rank. Rank 0 goes first: where it fails there, every rank raises, and one tells."""
    made: list[T] = []
    strategy.from_root(lambda: made.append(make()))
    return made[0] if made else make()


def average_state(strategy: Strategy, variables: Sequence[Any]) -> None:
    """Set variables that differ by rank (batch norm's running statistics) to their mean over all ranks."""
    floating = [variable for variable in variables if np.issubdtype(np.dtype(variable.dtype), np.floating)]
    if floating:
        for variable, mean in zip(floating, strategy.average([variable.value for variable in floating]), strict=True):
            variable.assign(mean)


def weights_digest(variables: Sequence[Any]) -> str:
    """SHA-256 of the bytes of all these variables, in their order."""
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()

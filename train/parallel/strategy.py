"""What differs between ways of training in parallel, behind one small interface; Horovod is the one there is."""

import ctypes
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from etl.errors import RingsliceError
from train.monitor.heartbeat import PULSE
from train.monitor.messages import PeerLost
from train.monitor.rank_process import peer_lost
from train.toolchain.build_horovod import INIT_ERROR

T = TypeVar("T")


class RootFailed(RingsliceError):
    """Rank 0 failed and said why; this rank ends with the same status, without a word."""

    told = True

    def __init__(self, status: int) -> None:
        super().__init__("rank 0 failed")
        self.status = status


@contextmanager
def telling_lost_peers() -> Iterator[None]:
    """Turn what Horovod raises on the ranks that are left into one line that names who is gone; one rank tells it."""
    try:
        yield
    except (tf.errors.OpError, HorovodInternalError) as error:
        if "horovod" not in f"{type(error)} {error}".lower():
            raise
        raise peer_lost() from error


class Strategy(Protocol):
    """``rank`` counts the processes from 0 to before ``size``."""

    rank: int
    size: int

    def average(self, tensors: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        """The mean over all ranks of each tensor; with ``half`` all but scalars go round as float16."""
        ...

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over all ranks, as a part of what is differentiated: its gradient is that of all ranks' results."""
        ...

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks, in float64."""
        ...

    def broadcast(self, variables: Sequence[Any], root: int = 0) -> None:
        """Give every rank the values that rank ``root`` has for these Keras variables."""
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


class RemovedError(Exception):
    """This process has no place in the ring any more."""


class Horovod:
    """Ranks in a ring, started by ``horovodrun``; alone where there is none.

    ``generation`` is at least that which is given, and the same on all ranks: an elastic run makes a new ring for each
    change.

    Raises RemovedError where its host was taken out of an elastic run, HorovodInternalError or PeerLost where a rank
    did not come.
    """

    def __init__(self, generation: int = 0) -> None:
        PULSE.does("joining the ring")
        try:
            hvd.init()
        except ValueError:
            hvd.shutdown()  # so that it can be tried again
            raise _not_joined(_init_error(), generation) from None
        try:
            self.rank, self.size = hvd.rank(), hvd.size()
            self.generation = max(hvd.allgather_object(generation)) if self.size > 1 else generation
        except BaseException:  # a rank was lost again: leave, or the next ring is taken for this one
            hvd.shutdown()
            raise
        PULSE.joins(self.rank, self.size, self.generation)

    def average(self, tensors: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        if not half:
            return list(hvd.grouped_allreduce(list(tensors), op=hvd.Average))
        scalars = iter(self.average([each for each in tensors if not each.shape.rank]))
        others = iter(self.average([tf.cast(each, tf.float16) for each in tensors if each.shape.rank]))
        return [tf.cast(next(others), each.dtype) if each.shape.rank else next(scalars) for each in tensors]

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(tensor, op=hvd.Sum)

    def sum(self, values: Sequence[float]) -> list[float]:
        PULSE.enters("summing over all ranks")
        return [float(value) for value in hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum).numpy()]

    def broadcast(self, variables: Sequence[Any], root: int = 0) -> None:
        # hvd.broadcast_variables does not know Keras 3's, and leaves files of autograph's in $TMPDIR
        PULSE.enters(f"taking the weights of rank {root}")
        for variable in variables:
            variable.assign(hvd.broadcast(tf.convert_to_tensor(variable.value), root_rank=root))
            PULSE.ticks()

    def gather(self, value: T) -> list[T]:
        PULSE.enters("gathering from all ranks")
        return list(hvd.allgather_object(value))

    def from_root(self, make: Callable[[], T]) -> T:
        """Rank 0's value or failure goes to all ranks in one broadcast."""
        value: T | None = None
        error: Exception | None = None
        if self.rank == 0:
            PULSE.does("what rank 0 does for all")
            try:
                value = make()
            except Exception as raised:  # told to all ranks first, then raised as it is
                error = raised
        PULSE.enters("waiting for rank 0")
        failed, value = hvd.broadcast_object((getattr(error, "status", 1) if error else None, value), root_rank=0)
        if error is not None:
            raise error
        if failed is not None:
            raise RootFailed(failed)
        return value

    def leave(self) -> None:
        """Without it, ranks that are left tell of a lost connection."""
        PULSE.enters("leaving the ring")
        hvd.shutdown()


def _not_joined(why: str, generation: int) -> Exception:
    """What to raise where a ring did not come about. Of a later one the ranks of the one before are not the cause."""
    if "has been removed" in why:
        return RemovedError(why)
    if not generation:
        return HorovodInternalError(f"Horovod: {why}")
    lost = PeerLost(f"a rank did not join ({why})")
    lost.told = PULSE.beat().rank != 0
    return lost


def _init_error() -> str:
    """Why the ring could not be joined; our build of Horovod leaves it in the environment that C sees."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return (getenv(INIT_ERROR.encode()) or b"the ring could not be joined").decode(errors="replace")


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

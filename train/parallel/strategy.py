"""What differs between ways of training in parallel, behind one small interface; Horovod is the one there is."""

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import horovod.tensorflow as hvd
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from etl.errors import RingsliceError
from train.monitor.messages import PeerLost
from train.monitor.monitor import Monitor
from train.toolchain.horovod_changes import INIT_ERROR

T = TypeVar("T")
Number = TypeVar("Number", bound=np.generic)

BUCKET_BYTES = 8 << 20  # of gradients that are reduced together


class RootFailed(RingsliceError):
    """Rank 0 failed and said why; this rank ends with the same status, without a word."""

    told = True

    def __init__(self, status: int) -> None:
        super().__init__("rank 0 failed")
        self.status = status


@contextmanager
def telling_lost_peers(monitor: Monitor) -> Iterator[None]:
    """Turn what Horovod raises on the ranks that are left into one line that names who is gone; one rank tells it."""
    try:
        yield
    except (tf.errors.OpError, HorovodInternalError) as error:
        refused = isinstance(error, tf.errors.InvalidArgumentError)  # the op itself, whoever is there
        if refused or "horovod" not in f"{type(error)} {error}".lower():
            raise
        raise monitor.peer_lost() from error


class Strategy(Protocol):
    """``rank`` counts the processes from 0 to before ``size``."""

    rank: int
    size: int

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The mean over all ranks of each tensor, all reduced together."""
        ...

    def average_gradients(self, gradients: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        """The mean over all ranks of each gradient, each reduced as soon as it is there; with ``half`` as float16."""
        ...

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over all ranks, as a part of what is differentiated: its gradient is that of all ranks' results."""
        ...

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks, in float64."""
        ...

    def sum_array(self, array: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """The sum over all ranks of arrays of the same shape and type."""
        ...

    def max_array(self, array: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """The maximum over all ranks of each element of arrays of the same shape and type."""
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
    """Ranks in a ring, started by ``horovodrun``; one rank without it. ``monitor`` gets the phases.

    ``generation`` is at least that which is given, and the same on all ranks: an elastic run makes a new ring for each
    change.

    Raises RemovedError where its host was taken out of an elastic run, HorovodInternalError or PeerLost where a rank
    did not come.
    """

    def __init__(self, monitor: Monitor, generation: int = 0) -> None:
        self._monitor = monitor
        monitor.local_phase("joining the ring")
        # a ring adds up each part of a buffer from another rank on: what shares one must not depend on the moment
        os.environ.setdefault("HOROVOD_DISABLE_GROUP_FUSION", "1")
        try:
            hvd.init()
        except ValueError:
            hvd.shutdown()  # so that it can be tried again
            raise _not_joined(_init_error(), generation, monitor.beat().rank) from None
        try:
            self.rank, self.size = hvd.rank(), hvd.size()
            self.generation = max(hvd.allgather_object(generation)) if self.size > 1 else generation
        except BaseException:  # a rank was lost again: leave, or the next ring is taken for this one
            hvd.shutdown()
            raise
        monitor.joined(self.rank, self.size, self.generation)

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(hvd.grouped_allreduce(list(tensors), op=hvd.Average))

    def average_gradients(self, gradients: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        """Divided before the cast to float16, in which the sum of all ranks may overflow; else as float32, whatever a
        user's layers have: a group takes but one type.
        """
        told = [tf.cast(each / self.size, tf.float16) if half else tf.cast(each, tf.float32) for each in gradients]
        reduced: dict[int, tf.Tensor] = {}
        for numbers in buckets([each.dtype.size * (each.shape.num_elements() or 0) for each in told]):
            parts = hvd.grouped_allreduce([told[each] for each in numbers], op=hvd.Sum if half else hvd.Average)
            reduced |= zip(numbers, parts, strict=True)
        return [tf.cast(reduced[number], each.dtype) for number, each in enumerate(gradients)]

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(tensor, op=hvd.Sum)

    def sum(self, values: Sequence[float]) -> list[float]:
        self._monitor.phase("summing over all ranks")
        return [float(value) for value in hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum).numpy()]

    def sum_array(self, array: npt.NDArray[Number]) -> npt.NDArray[Number]:
        self._monitor.phase("summing over all ranks")
        return np.asarray(hvd.allreduce(tf.constant(array), op=hvd.Sum))

    def max_array(self, array: npt.NDArray[Number]) -> npt.NDArray[Number]:
        self._monitor.phase("comparing all ranks")
        return np.asarray(hvd.allreduce(tf.constant(array), op=hvd.Max))

    def broadcast(self, variables: Sequence[Any], root: int = 0) -> None:
        # hvd.broadcast_variables does not know Keras 3's, and leaves files of autograph's in $TMPDIR
        self._monitor.phase(f"taking the weights of rank {root}")
        for variable in variables:
            variable.assign(hvd.broadcast(tf.convert_to_tensor(variable.value), root_rank=root))
            self._monitor.progress()

    def gather(self, value: T) -> list[T]:
        self._monitor.phase("gathering from all ranks")
        return list(hvd.allgather_object(value))

    def from_root(self, make: Callable[[], T]) -> T:
        """Rank 0's value or failure goes to all ranks in one broadcast."""
        value: T | None = None
        error: Exception | None = None
        if self.rank == 0:
            self._monitor.local_phase("what rank 0 does for all")
            try:
                value = make()
            except Exception as raised:  # told to all ranks first, then raised as it is
                error = raised
        self._monitor.phase("waiting for rank 0")
        failed, value = hvd.broadcast_object((getattr(error, "status", 1) if error else None, value), root_rank=0)
        if error is not None:
            raise error
        if failed is not None:
            raise RootFailed(failed)
        return value

    def leave(self) -> None:
        """Without it, ranks that are left tell of a lost connection."""
        self._monitor.phase("leaving the ring")
        hvd.shutdown()


def buckets(sizes: Sequence[int]) -> list[list[int]]:
    """The numbers of gradients of these ``sizes``, in bytes, in groups of at least `BUCKET_BYTES` but for the last.

    The last gradients come first: the backward pass has them first, and they are reduced while it goes on. One group
    for all if there are few bytes: each costs a round of all ranks. Pure.
    """
    found: list[list[int]] = []
    room = 0
    for number in reversed(range(len(sizes))):
        if room <= 0:
            found.append([])
            room = BUCKET_BYTES
        found[-1].append(number)
        room -= sizes[number]
    return found


def _not_joined(why: str, generation: int, rank: int) -> Exception:
    """What to raise where a ring did not come about. Of a later one the ranks of the one before are not the cause.

    ``rank`` is that of this process in the ring before.
    """
    if "has been removed" in why:
        return RemovedError(why)
    if not generation:
        return HorovodInternalError(f"Horovod: {why}")
    lost = PeerLost(f"a rank did not join ({why})")
    lost.told = rank != 0
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


def weights_digest(variables: Sequence[Any]) -> str:
    """SHA-256 of the bytes of all these variables, in their order."""
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest()

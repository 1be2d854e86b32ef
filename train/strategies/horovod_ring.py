"""Horovod: one process for each rank, in a ring; gradients are averaged by its all-reduce."""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

import horovod.tensorflow as hvd
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from etl.slices.manifest import Manifest
from train.config.settings import Settings
from train.monitor.messages import PeerLost
from train.monitor.monitor import Monitor
from train.parallel.collective import Collective, Number, Operation
from train.strategies import Strategy
from train.tf_backend.devices import take_device
from train.tf_backend.steps import Replicas
from train.tf_backend.trainer import KerasTrainer
from train.toolchain.horovod_changes import INIT_ERROR

T = TypeVar("T")

BUCKET_BYTES = 8 << 20  # of gradients that are reduced together


@contextmanager
def name_lost_ranks(monitor: Monitor) -> Iterator[None]:
    """Turn what Horovod raises on the remaining ranks into one line that names the lost ones; one rank prints it."""
    try:
        yield
    except (tf.errors.OpError, HorovodInternalError) as error:
        refused = isinstance(error, tf.errors.InvalidArgumentError)  # the op itself, whatever ranks there are
        if refused or "horovod" not in f"{type(error)} {error}".lower():
            raise
        raise monitor.peer_lost() from error


class RemovedError(Exception):
    """This process has no place in the ring any more."""


class Ring(Collective):
    """The ranks that ``horovodrun`` started; one rank without it. ``monitor`` gets the phases.

    ``generation`` is at least that which is given, and the same on all ranks: an elastic run makes a new ring for each
    change.

    Raises RemovedError if its host was taken out of an elastic run, HorovodInternalError or PeerLost if a rank did not
    come.
    """

    _monitor: Monitor

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

    def all_reduce(self, array: npt.NDArray[Number], operation: Operation = "sum") -> npt.NDArray[Number]:
        self._monitor.phase("reducing over all ranks")
        op = hvd.Sum if operation == "sum" else hvd.Max
        return np.asarray(hvd.allreduce(tf.constant(array), op=op))

    def gather_object(self, value: T) -> list[T]:
        self._monitor.phase("gathering from all ranks")
        return list(hvd.allgather_object(value))

    def broadcast_object(self, value: T, root: int = 0) -> T:
        if self.size == 1:  # what is done here meanwhile is waiting for the storage at most
            return value
        self._monitor.phase(f"waiting for rank {root}")
        return hvd.broadcast_object(value, root_rank=root)

    def close(self) -> None:
        """Without it, ranks that are left report a lost connection."""
        self._monitor.phase("leaving the ring")
        hvd.shutdown()


class RingReplicas(Replicas):
    """The copies of the model on the ranks of a ring: `train.tf_backend.steps.Replicas` by Horovod's operations."""

    def __init__(self, ring: Ring, monitor: Monitor) -> None:
        self.rank, self.size = ring.rank, ring.size
        self._monitor = monitor

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """In one group, which Horovod reduces together."""
        return list(hvd.grouped_allreduce(list(tensors), op=hvd.Average))

    def average_gradients(self, gradients: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        """Divided before the cast to float16, in which the sum of all ranks may overflow; else as float32, whatever a
        user's layers have: a group takes but one type.
        """
        cast = [tf.cast(each / self.size, tf.float16) if half else tf.cast(each, tf.float32) for each in gradients]
        reduced: dict[int, tf.Tensor] = {}
        for numbers in buckets([each.dtype.size * (each.shape.num_elements() or 0) for each in cast]):
            parts = hvd.grouped_allreduce([cast[each] for each in numbers], op=hvd.Sum if half else hvd.Average)
            reduced |= zip(numbers, parts, strict=True)
        return [tf.cast(reduced[number], each.dtype) for number, each in enumerate(gradients)]

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        """Differentiable, as Horovod's all-reduce is."""
        return hvd.allreduce(tensor, op=hvd.Sum)

    def broadcast(self, variables: Sequence[Any], root: int) -> None:
        """One variable after the other; all ranks have them in the same order."""
        # hvd.broadcast_variables does not know Keras 3's, and leaves files of autograph's in $TMPDIR
        self._monitor.phase(f"taking the weights of rank {root}")
        for variable in variables:
            variable.assign(hvd.broadcast(tf.convert_to_tensor(variable.value), root_rank=root))
            self._monitor.progress()


class Horovod(Strategy):
    """The strategy of ``horovodrun``: each rank reads its share of the slices and has a copy of the model."""

    collective: Ring

    def __init__(self, monitor: Monitor, generation: int = 0) -> None:
        self.collective = Ring(monitor, generation)
        self._monitor = monitor

    def device(self, settings: Settings) -> dict[str, Any]:
        """Raises nothing if the rank cannot have the device: what it lacks is compared with the other ranks."""
        return {"device": asdict(take_device(settings.device)), "has_nccl": bool(hvd.nccl_built())}

    def make_trainer(self, settings: Settings, manifest: Manifest) -> KerasTrainer:
        """Raises UsageError if the model does not fit the pictures."""
        return KerasTrainer(settings, manifest, RingReplicas(self.collective, self._monitor))


def run_on_ranks(work: Callable[[Horovod], None], monitor: Monitor, device: str) -> None:
    """Call ``work`` on the ranks that ``horovodrun`` started, each with its ``device`` of --device.

    Raises PeerLost if a rank is lost.
    """
    take_device(device)
    with name_lost_ranks(monitor):
        work(Horovod(monitor))


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
    """What to raise if a ring did not come about. Of a later one the ranks of the one before are not the cause.

    ``rank`` is that of this process in the ring before.
    """
    if "has been removed" in why:
        return RemovedError(why)
    if not generation:
        return HorovodInternalError(f"Horovod: {why}")
    lost = PeerLost(f"a rank did not join ({why})")
    lost.is_reported = rank != 0
    return lost


def _init_error() -> str:
    """Why the ring could not be joined; our build of Horovod leaves it in the environment that C sees."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return (getenv(INIT_ERROR.encode()) or b"the ring could not be joined").decode(errors="replace")

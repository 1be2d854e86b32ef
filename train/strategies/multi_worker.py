"""Several processes, on one host or more, each with a copy of the model on each of its devices.

TensorFlow's `tf.distribute.MultiWorkerMirroredStrategy` reduces gradients over all processes, whose addresses are in
``TF_CONFIG``: train/launch.py starts them on this host, a scheduler on others.
"""

import logging
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from etl.errors import EnvironmentFailure
from train.monitor.messages import first_line
from train.monitor.monitor import Monitor
from train.parallel.cluster import WORKER, require_workers
from train.parallel.collective import Collective, Number, Operation
from train.parallel.endings import LOST
from train.strategies.mirrored import Mirrored, MirroredReplicas
from train.tf_backend.devices import take_all_gpus

T = TypeVar("T")


class Workers(Collective):
    """The processes of a `MultiWorkerMirroredStrategy`; the first copy of the model of each stands for it."""

    _monitor: Monitor

    def __init__(self, strategy: tf.distribute.MultiWorkerMirroredStrategy, monitor: Monitor) -> None:
        self._strategy, self._monitor = strategy, monitor
        self.rank = strategy.cluster_resolver.task_id
        self.size = strategy.cluster_resolver.cluster_spec().num_tasks("worker")
        self._local = strategy.num_replicas_in_sync // self.size
        monitor.joined(self.rank, self.size)

    def _values(self, first: npt.NDArray[Any], others: npt.NDArray[Any]) -> Any:
        """These values of the copies of this process."""
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(others if context.replica_id_in_sync_group % self._local else first)
        )

    def all_reduce(self, array: npt.NDArray[Number], operation: Operation = "sum") -> npt.NDArray[Number]:
        """Raises what TensorFlow raises if a worker is lost."""
        if operation == "max":
            return np.max(self.gather_object(array), axis=0)
        self._monitor.phase("reducing over all ranks")
        values = self._values(array, np.zeros_like(array))
        return np.asarray(self._strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None))

    def gather_object(self, value: T) -> list[T]:
        """As bytes, in words of 8: `Strategy.gather` takes no uint8. Sizes first, because they differ."""
        self._monitor.phase("gathering from all ranks")
        message = pickle.dumps(value)  # of a process of this run, as Horovod exchanges objects
        words = np.frombuffer(message + bytes(-len(message) % 8), np.int64)
        sizes = self._gathered(np.array([len(words)]), np.zeros(1, np.int64))
        joined = self._gathered(words, words[:0])
        ends = np.cumsum(sizes[sizes > 0])
        return [pickle.loads(each.tobytes()) for each in np.split(joined, ends[:-1])]  # noqa: S301 # see above

    def _gathered(self, first: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.asarray(self._strategy.gather(self._values(first, others), 0))

    def close(self) -> None:
        """TensorFlow waits for all workers itself."""
        self._monitor.phase("leaving the other ranks")


class WorkerReplicas(MirroredReplicas):
    """The copies of the model on the devices of all processes."""

    def __init__(self, strategy: tf.distribute.Strategy, workers: Workers) -> None:
        super().__init__(strategy)
        self.local = self.size // workers.size
        self.rank = workers.rank * self.local
        self._workers = workers

    def broadcast(self, variables: Sequence[Any], root: int) -> None:
        """Pickled arrays, to the Keras variables of every process."""
        own = [each.numpy() for each in variables] if self._workers.rank == root else []
        for variable, value in zip(variables, self._workers.broadcast_object(own, root), strict=True):
            variable.assign(value)


@contextmanager
def name_lost_workers() -> Iterator[None]:
    """Turn what TensorFlow raises on the ranks that are left into one line."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "ollective" not in str(error):
            raise
        raise EnvironmentFailure(LOST) from error


def run_workers(work: Callable[[Mirrored], None], monitor: Monitor, device: str) -> None:
    """Call ``work`` on the processes of ``$TF_CONFIG``, each with all GPUs that it sees, or with its cores.

    Raises UsageError if TF_CONFIG is not right, EnvironmentFailure if a process does not come, or is lost.
    """
    task = require_workers(os.environ.get("TF_CONFIG", ""))
    taken, _ = take_all_gpus(device)
    monitor.local_phase("joining the other ranks")
    tf.get_logger().setLevel(logging.ERROR)  # it warns of each shape that objects are exchanged in
    if not task.index:
        workers = task.cluster[WORKER]
        monitor.log(f"waiting for {len(workers)} workers: {', '.join(workers)}")
    with name_lost_workers():
        strategy = join_workers()
        ranks = Workers(strategy, monitor)
        work(Mirrored(WorkerReplicas(strategy, ranks), taken, ranks))


def join_workers() -> tf.distribute.MultiWorkerMirroredStrategy:
    """Wait until all workers are there. Raises EnvironmentFailure if this process cannot serve its address."""
    with end_by_signals():
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        except (tf.errors.UnknownError, tf.errors.InvalidArgumentError) as error:
            raise EnvironmentFailure(f"this worker cannot join: {first_line(error)} (is its port taken?)") from error


@contextmanager
def end_by_signals() -> Iterator[None]:
    """Let a signal end the process at once: TensorFlow keeps the interpreter's lock while it waits for others."""
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

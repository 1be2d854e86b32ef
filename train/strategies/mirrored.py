"""One process with a copy of the model on each GPU of the host, or on each of several logical CPUs.

TensorFlow's `tf.distribute.MirroredStrategy` has the variables and reduces gradients (NCCL on GPUs). The optimizer
applies them outside `Strategy.run` and outside its scope: within `run`, Keras would sum them over the copies again.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from etl.errors import EnvironmentFailure
from etl.slices.manifest import Manifest
from train.config.settings import Settings
from train.monitor.monitor import Monitor
from train.parallel.collective import Collective, SingleProcess
from train.parallel.devices import Device
from train.strategies import Strategy
from train.tf_backend.devices import take_all_gpus
from train.tf_backend.steps import Replicas
from train.tf_backend.trainer import KerasTrainer

MEAN = tf.distribute.ReduceOp.MEAN


class MirroredReplicas(Replicas):
    """The copies of the model on the devices of a `tf.distribute` strategy of one process."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self.rank, self.size = 0, strategy.num_replicas_in_sync
        self.local = self.size

    def scope(self) -> AbstractContextManager[Any]:
        """`tf.distribute.Strategy.scope`."""
        return self._strategy.scope()

    def split(self, columns: Sequence[tf.Tensor], in_turn: bool = False) -> Sequence[Any]:
        """Columns whose first dimension is divisible by the copies of this process, as per-replica values."""

        def part(column: tf.Tensor) -> Any:
            parts = divided(column, self.local, in_turn)
            return self._strategy.experimental_distribute_values_from_function(
                lambda context: parts[context.replica_id_in_sync_group % self.local]
            )

        return [part(each) for each in columns]

    def run(self, function: Callable[..., Any], columns: Sequence[Any]) -> Any:
        """`tf.distribute.Strategy.run`."""
        return self._strategy.run(function, args=tuple(columns))

    def local_values(self, value: Any) -> Sequence[tf.Tensor]:
        """The tensors of a per-replica value, by copy."""
        return self._strategy.experimental_local_results(value)

    def average(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
        """The means of per-replica values over all copies."""
        return [self._strategy.reduce(MEAN, each, axis=None) for each in tensors]

    def average_gradients(self, gradients: Sequence[Any], half: bool = False) -> list[tf.Tensor]:
        """Likewise, all in one reduction, by NCCL or the ring of the strategy; ``half`` is refused by the settings."""
        del half  # refused by the settings
        reduced = self._strategy.extended.batch_reduce_to(MEAN, [(each, each) for each in gradients])
        return [self.local_values(each)[0] for each in reduced]

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        """Within `run`."""
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    def broadcast(self, variables: Sequence[Any], root: int) -> None:
        """There is one process, and a variable has one value on all its devices."""


def divided(column: tf.Tensor, copies: int, in_turn: bool) -> list[tf.Tensor]:
    """Equal parts of a column: runs of it, or ``in_turn`` every so many-th of it."""
    if not in_turn:
        return list(tf.split(column, copies))
    return [column[copy::copies] for copy in range(copies)]


class Mirrored(Strategy):
    """One process reads all slices; each copy of the model takes its part of a batch, on one of its devices."""

    def __init__(self, replicas: MirroredReplicas, device: Device, collective: Collective) -> None:
        self.collective = collective
        self._replicas, self._device = replicas, device

    @property
    def replicas(self) -> int:
        """Copies of the model, over all processes."""
        return self._replicas.size

    def make_trainer(self, settings: Settings, manifest: Manifest) -> KerasTrainer:
        """Raises UsageError if the model does not fit the pictures."""
        return KerasTrainer(settings, manifest, self._replicas)


def run_mirrored(work: Callable[[Mirrored], None], monitor: Monitor, device: str, replicas: int | None) -> None:
    """Call ``work`` with so many ``replicas``: by default one for each GPU that TensorFlow sees, or one on the CPU.

    Raises EnvironmentFailure if there are fewer GPUs.
    """
    taken, gpus = take_all_gpus(device)
    if gpus and gpus < (replicas or 1):
        raise EnvironmentFailure(f"--replicas {replicas}: TensorFlow sees {gpus} GPUs; give fewer")
    count, kind = replicas or gpus or 1, "GPU" if gpus else "CPU"
    if not gpus:
        parts = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    os.environ.pop("TF_CONFIG", None)  # which TensorFlow would read, and a single process does not need
    strategy = tf.distribute.MirroredStrategy([f"{kind}:{number}" for number in range(count)])
    monitor.joined(0, 1)
    work(Mirrored(MirroredReplicas(strategy), taken, SingleProcess()))

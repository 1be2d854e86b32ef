"""Strategies to compare Horovod with: one process without a ring, and rings that leave something out."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from etl.slices.manifest import Manifest
from tests.lib.ranks.threads import Ring, ThreadRank
from train.config.settings import Settings
from train.runs.run import Run
from train.strategies.horovod_ring import Horovod, RingReplicas
from train.tf_backend.trainer import KerasTrainer


class SingleRank(Horovod):
    """One process without a ring."""

    collective: Any
    earlier: Run | None = None

    def __init__(self, earlier: Run | None = None) -> None:
        self.collective, self.earlier = ThreadRank(Ring(1), 0), earlier

    def make_trainer(self, settings: Settings, manifest: Manifest) -> KerasTrainer:
        return KerasTrainer(settings, manifest, self.collective)


class _WithoutStatistics(RingReplicas):
    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor


class _WithoutReduction(_WithoutStatistics):
    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(tensors)

    def average_gradients(self, gradients: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        return list(gradients)


class OwnWeights(Horovod):
    """Horovod; until the weights of rank 0 are broadcast, each rank has others."""

    of_ring: type[RingReplicas] = RingReplicas

    def make_trainer(self, settings: Settings, manifest: Manifest) -> KerasTrainer:
        trainer = KerasTrainer(settings, manifest, self.of_ring(self.collective, self._monitor))
        for variable in trainer.model.trainable_variables:
            variable.assign(variable * (1 + self.collective.rank))
        return trainer


class LocalStatistics(OwnWeights):
    """Without the all-reduce of batch norm's statistics."""

    of_ring = _WithoutStatistics


class Identity(OwnWeights):
    """Without the all-reduce of gradients and of batch norm's statistics."""

    of_ring = _WithoutReduction

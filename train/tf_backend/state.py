"""The state of a model beside what gradients change: batch norm's running statistics, and seeds of random layers."""

import hashlib
from typing import Any

import keras
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

from train.tf_backend.batch_norm import SynchronisedBatchNormalization

SEEDS = 1 << 30  # Keras takes a seed modulo 2**31 - 2, and each draw adds 1 to its second number


def running_statistics(model: keras.Model) -> list[Any]:
    """The variables of floating point that layers change by themselves in training, as batch norm does: its moving mean
    and variance. None of layers that are frozen, or whose statistics are those of all ranks already.
    """
    return [
        variable
        for layer in model._flatten_layers()
        if layer.trainable and not isinstance(layer, SynchronisedBatchNormalization)
        for variable in layer._non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype)
    ]


class RandomDraws:
    """The draws of a model's random layers (dropout, noise): a function of the seed, the layer, the rank and the step.

    So they differ by rank, and are the same again in a run that is resumed. What a generator counts is not part of a
    checkpoint, and differs by rank after each step.
    """

    def __init__(self, model: keras.Model, seed: int, rank: int) -> None:
        generators = [each for layer in model._flatten_layers() for each in layer._seed_generators]
        generators.append(global_seed_generator())  # of layers that draw without a seed
        self.states = [each.state for each in generators]
        self._keys = [_key(seed, number, rank) for number in range(len(generators))]

    def begin(self, step: Any) -> None:
        """In a graph, have the draws that follow be those of ``step`` (an integer scalar)."""
        for state, key in zip(self.states, self._keys, strict=True):
            seed = tf.stack([tf.constant(key, tf.int64), tf.cast(step, tf.int64)])
            first = tf.random.stateless_uniform([2], seed, 0, SEEDS, tf.int32)
            state.assign(tf.cast(first, state.dtype))


def _key(seed: int, number: int, rank: int) -> int:
    """31 bits of a hash: a seed generator's state may have 32."""
    digest = hashlib.blake2b(repr(("draws", seed, number, rank)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1

"""Batch norm whose statistics are those of all ranks' batches together, as if one rank had the whole.

Horovod has a layer for this, which does not fit Keras 3.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from etl.errors import UsageError

SumOverRanks = Callable[[tf.Tensor], tf.Tensor]

_REMEDY = "give --batch-norm local"
_PRESENT: ContextVar[tf.Tensor | None] = ContextVar("present", default=None)


@contextmanager
def count_if(present: tf.Tensor) -> Iterator[None]:
    """Have the batches of a model that is called in the block count for synchronised statistics if ``present`` is 1,
    and not if it is 0, as of a rank that has but padding: TensorFlow's convolutions fail for an empty batch.
    """
    token = _PRESENT.set(present)
    try:
        yield
    finally:
        _PRESENT.reset(token)


class SynchronisedBatchNormalization(keras.layers.BatchNormalization):
    """Keras' layer with the mean and variance of all ranks' batches; all else, weights and configuration too, is its.

    ``reduce`` gives the sum of a tensor over all ranks, and has a gradient: the sum over all ranks of the gradients.
    Every rank must call it equally often, in training and for gradients. It is an op of its own, which XLA cannot
    compile.
    """

    def __init__(self, *, reduce: SumOverRanks, **options: Any) -> None:
        super().__init__(**options)
        self._reduce = reduce

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of each of C channels, float32 of shape (C,), by one reduction of 2 C + 1 numbers.

        The base class gives ``inputs`` as float32 under mixed precision too (float64 as they are). The variance
        is E[y^2] - E[y]^2 of y = x - the moving mean. It is the same whatever is subtracted, but keeps its digits only
        if that is near the mean, as the moving mean soon is. That one is equal on all ranks already; the mean itself
        would take a second reduction. If no rank has an example, the moving mean and variance are given.
        """
        if mask is not None:
            raise UsageError(f"synchronised batch norm takes no mask, and {self.name} is given one; {_REMEDY}")
        channels = self.moving_mean.shape[0]
        across = [1] * inputs.shape.rank
        across[self.axis] = channels
        near = tf.stop_gradient(tf.cast(self.moving_mean, inputs.dtype))
        shifted = inputs - tf.reshape(near, across)
        sums = tf.reduce_sum(shifted, self._reduction_axes), tf.reduce_sum(tf.square(shifted), self._reduction_axes)
        count = tf.cast(tf.size(inputs) // channels, inputs.dtype)
        own = tf.concat([*sums, count[None]], 0)
        present = _PRESENT.get()
        totals = self._reduce(own if present is None else own * tf.cast(present, own.dtype))
        mean, square = tf.split(totals[:-1] / tf.maximum(totals[-1], 1), 2)
        variance = tf.maximum(square - tf.square(mean), 0)
        return mean + near, tf.where(totals[-1] > 0, variance, tf.cast(self.moving_variance, inputs.dtype))


def synchronised(model: keras.Model, reduce: SumOverRanks) -> keras.Model:
    """The same model with every batch norm replaced by a synchronised one; unchanged if it has none.

    All other layers are those of ``model`` themselves, and the variables have the same values, names and order, so that
    a checkpoint of the one fits the other. ``model`` must not be used any more.

    Raises UsageError if a batch norm is out of reach: in a model or layer of the user's own class, or of such a
    class itself.
    """
    if not _batch_norms(model):
        return model

    def replaced(layer: keras.Layer) -> keras.Layer:
        if type(layer) is not keras.layers.BatchNormalization:
            return layer
        return SynchronisedBatchNormalization.from_config(layer.get_config() | {"reduce": reduce})

    _require_graphs(model)
    clone = keras.models.clone_model(model, clone_function=replaced, recursive=True)
    for layer in _batch_norms(clone):
        if not isinstance(layer, SynchronisedBatchNormalization):
            raise _out_of_reach(layer)
    clone.set_weights(model.get_weights())
    return clone


def _batch_norms(model: keras.Model) -> list[keras.Layer]:
    """At any depth, of classes derived from Keras' too."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]


def _require_graphs(model: keras.Model) -> None:
    """Raise UsageError if a model with a batch norm in it is of the user's own class: only that knows its layers."""
    for each in model._flatten_layers():
        own = isinstance(each, keras.Model) and not type(each).__module__.startswith("keras.")
        if own and _batch_norms(each):
            raise _out_of_reach(each)


def _out_of_reach(layer: keras.Layer) -> UsageError:
    return UsageError(
        f"--batch-norm synchronised: {layer.name} is a {type(layer).__name__}, whose batch norm cannot be replaced;"
        f" build the model of Keras' own layers, as keras.Sequential or keras.Model(inputs, outputs), or {_REMEDY}"
    )

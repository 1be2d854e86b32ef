"""A model that is traced in no time, with batch norm and dropout: all the state that a model can have.

The order in which layers are made decides their first weights.
"""

import math
import os
import time
from typing import Any

import keras
import tensorflow as tf
from keras.layers import Activation, BatchNormalization, Conv2D, Dense, Dropout, Flatten, ReLU

Shape = tuple[int, int, int]


def sequence(shape: Shape, *layers: keras.Layer) -> keras.Model:
    return keras.Sequential([keras.Input(shape), *layers])


def convolved() -> list[keras.Layer]:
    return [Conv2D(4, 3, strides=2, use_bias=False), BatchNormalization(momentum=0.9)]


def tiny(shape: Shape, classes: int) -> keras.Model:
    return sequence(shape, *convolved(), ReLU(), Flatten(), Dropout(0.1), Dense(classes))


class Paced(keras.layers.Layer):
    """A batch takes 0.1 s until there is the file ``$RELEASED``."""

    def call(self, pixels: Any) -> Any:
        return tf.ensure_shape(tf.py_function(self.wait, [pixels], pixels.dtype), pixels.shape)

    @staticmethod
    def wait(pixels: tf.Tensor) -> tf.Tensor:
        if not os.path.exists(os.environ["RELEASED"]):
            time.sleep(0.1)
        return pixels


def paced(shape: Shape, classes: int) -> keras.Model:
    return sequence(shape, Paced(), *convolved(), ReLU(), Flatten(), Dropout(0.1), Dense(classes))


def normed(shape: Shape, classes: int) -> keras.Model:
    """Two batch norms, and nothing at random."""
    first = [*convolved(), ReLU(), Flatten()]
    return sequence(shape, *first, Dense(32, use_bias=False), BatchNormalization(momentum=0.9), ReLU(), Dense(classes))


class Overflow(keras.layers.Layer):
    """Infinite outside training."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs if training else inputs * math.inf


def overflowing(shape: Shape, classes: int) -> keras.Model:
    """Its losses are finite in training, and not in an evaluation."""
    return sequence(shape, Flatten(), Dense(classes, kernel_initializer="zeros"), Overflow())


def smooth(shape: Shape, classes: int) -> keras.Model:
    """Without a ReLU, at whose kink a rounding error decides on a whole gradient. Small: float16 is slow on a CPU."""
    return sequence(shape, Flatten(), Dense(32, "tanh"), Dense(classes))


def smooth_normed(shape: Shape, classes: int) -> keras.Model:
    """The same with two batch norms."""
    first = [*convolved(), Activation("tanh"), Flatten()]
    return sequence(shape, *first, Dense(32, "tanh", use_bias=False), BatchNormalization(momentum=0.9), Dense(classes))

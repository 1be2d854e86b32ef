"""A model that is traced in no time, with batch norm and dropout: all the state that a model can have."""

import math
from typing import Any

import keras


def tiny(shape: tuple[int, int, int], classes: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(4, 3, strides=2, use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(classes),
        ]
    )


def normed(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Two batch norms, and nothing at random."""
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(4, 3, strides=2, use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(32, use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.Dense(classes),
        ]
    )


class Overflow(keras.layers.Layer):
    """Infinite where nothing is trained."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs if training else inputs * math.inf


def overflowing(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Its losses are finite in training, and not in an evaluation."""
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Flatten(),
            keras.layers.Dense(classes, kernel_initializer="zeros"),
            Overflow(),
        ]
    )


def smooth(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Without a ReLU, at whose kink a rounding error decides on a whole gradient. Small: float16 is slow on a CPU."""
    return keras.Sequential(
        [keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(32, "tanh"), keras.layers.Dense(classes)]
    )


def smooth_normed(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """The same with two batch norms."""
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(4, 3, strides=2, use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Activation("tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, "tanh", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Dense(classes),
        ]
    )

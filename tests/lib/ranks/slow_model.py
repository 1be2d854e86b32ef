"""A model that is slow on purpose: rank 1 builds it for BURN_S seconds, and all trace their evaluation as long."""

import os
import time
from typing import Any

import keras


def burn() -> None:
    """Compute for BURN_S seconds."""
    end = time.monotonic() + float(os.environ["BURN_S"])
    while time.monotonic() < end:
        sum(range(10_000))


class SlowToTrace(keras.layers.Layer):
    """The identity."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if training is False:
            burn()
        return inputs


def slow(shape: tuple[int, int, int], classes: int) -> keras.Model:
    if os.environ["HOROVOD_RANK"] == "1":
        burn()
    return keras.Sequential(
        [keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(classes), SlowToTrace(dtype="float32")]
    )

#!/usr/bin/env python3
"""Training steps of models with batch norm on batches of uneven values; each rank leaves what it has in OUT.

horovodrun -np 2 tests/lib/ranks/batch_norm_steps.py OUT

OUT/CASE-RANK.npz           each rank with its part of the batch
OUT/local-CASE-RANK.npz     the twin that must fail: its sum over all ranks is the identity
OUT/whole-CASE.npz          one process with the whole batch and Keras' own layer; the ranks take turns

Each has outputs, gradients of inputs, gradients of weights (of all ranks, summed), and variables.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from etl.errors import end_process
from etl.storage.place import Place, open_place
from tests.lib.ranks.strategies import Alone, LocalStatistics
from train.model.batch_norm import synchronised
from train.model.builders import cnn
from train.parallel.cores import claim_cores
from train.parallel.strategy import Horovod, Strategy

BATCH, STEPS, CLASSES = 8, 2, 3


def norm(shape: tuple[int, ...], **options: Any) -> keras.Model:
    """Batch norm alone, with a gamma and a beta that are not those that it begins with."""
    layer = keras.layers.BatchNormalization(
        momentum=0.9, gamma_initializer=keras.initializers.RandomUniform(0.5, 2), beta_initializer="ones", **options
    )
    return keras.Sequential([keras.Input(shape), layer])


def nested(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A batch norm that is used twice, two models deep, in a model with a second path."""
    inputs = keras.Input(shape)
    inner = keras.Sequential([keras.Input(shape), norm(shape), keras.layers.ReLU()])
    features = keras.layers.Add()([inner(inner(inputs)), keras.layers.Dropout(0.0)(inputs)])
    return keras.Model(inputs, keras.layers.Dense(classes)(keras.layers.Flatten()(features)))


PICTURE = (12, 12, 3)
CASES: dict[str, tuple[tuple[int, ...], Callable[[], keras.Model]]] = {
    "vectors": ((5,), lambda: norm((5,))),
    "pictures": (PICTURE, lambda: norm(PICTURE, epsilon=1e-5)),
    "channels-first": (PICTURE, lambda: norm(PICTURE, axis=1)),
    "half": (PICTURE, lambda: norm(PICTURE, dtype="mixed_float16")),
    "nested": (PICTURE, lambda: nested(PICTURE, CLASSES)),
    "cnn": (PICTURE, lambda: cnn(PICTURE, CLASSES)),
}


def batches(shape: tuple[int, ...]) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Inputs whose mean and scale grow from example to example, and what their outputs are multiplied by for a loss."""
    generator = np.random.default_rng(5)
    for _ in range(STEPS):
        grown = np.arange(1, BATCH + 1).reshape(-1, *[1] * len(shape))
        yield generator.normal(2.0 * grown, grown, (BATCH, *shape)), generator.normal(size=BATCH)


def steps(model: keras.Model, shape: tuple[int, ...], strategy: Strategy) -> dict[str, Any]:
    """What comes of a step for each batch, on this rank's part of it; by name, with its number."""

    @tf.function(autograph=False)
    def step(inputs: tf.Tensor, factors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = tf.cast(model(inputs, training=True), tf.float32)
            flat = tf.reshape(outputs, (outputs.shape[0], -1))
            loss = tf.reduce_sum(tf.reduce_mean(tf.square(flat + 1), 1) * factors)
        of_inputs, *of_weights = tape.gradient(loss, [inputs, *[each.value for each in model.trainable_variables]])
        return outputs, of_inputs, strategy.average(of_weights)

    results: dict[str, Any] = {}
    for number, batch in enumerate(batches(shape)):
        own = [tf.constant(np.split(part, strategy.size)[strategy.rank], tf.float32) for part in batch]
        outputs, of_inputs, of_weights = step(*own)
        results |= {f"{number}-outputs": outputs, f"{number}-inputs": of_inputs}
        results |= {f"{number}-weight-{which:03d}": each * strategy.size for which, each in enumerate(of_weights)}
    return results | {f"variable-{which:03d}": each.value for which, each in enumerate(model.variables)}


def save_steps(path: str, case: str, strategy: Strategy) -> None:
    shape, make = CASES[case]
    keras.utils.clear_session()  # all-reduces are called as layers are, so these must have the same names on all ranks
    keras.utils.set_random_seed(3)
    model = make()
    if strategy.size > 1:
        model = synchronised(model, strategy.sum_in_graph)
    results: Any = {key: np.asarray(value) for key, value in steps(model, shape, strategy).items()}
    np.savez(path, **results)


def main(out: Place) -> None:
    strategy = Horovod()
    for number, case in enumerate(CASES):
        if number % strategy.size == strategy.rank:
            save_steps(f"{out.path}/whole-{case}.npz", case, Alone())
        save_steps(f"{out.path}/{case}-{strategy.rank}.npz", case, strategy)
        save_steps(f"{out.path}/local-{case}-{strategy.rank}.npz", case, LocalStatistics())
    strategy.leave()


if __name__ == "__main__":
    claim_cores(int(os.environ.get("HOROVOD_LOCAL_RANK", "0")), int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")))
    gc.freeze()  # Keras collects garbage before each model
    main(open_place(sys.argv[1]).make_folder())
    end_process(0)

"""What a model has beside weights: random layers draw by rank and step, statistics are found unless frozen."""

import itertools

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from train.tf_backend.state import RandomDraws, running_statistics

RATE = 0.3
UNITS = 4_000


class WithoutSeed(keras.layers.Layer):
    """Dropout by the generator that all layers share that have none of their own."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return keras.random.dropout(inputs, RATE)


def masks(rank: int, steps: int, seed: int = 0) -> list[npt.NDArray[np.bool_]]:
    """What dropout layers keep at each step: (steps, layers, units)."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dropout(RATE), keras.layers.Dropout(RATE, seed=3), WithoutSeed(), WithoutSeed()]
    inputs = keras.Input((UNITS,))
    model = keras.Model(inputs, [layers[0](inputs), *(keras.Sequential([each])(inputs) for each in layers[1:])])
    draws = RandomDraws(model, seed, rank)

    @tf.function(autograph=False)
    def take_step(step: tf.Tensor) -> list[tf.Tensor]:
        draws.begin(step)
        return list(model(tf.ones((1, UNITS)), training=True))

    return [np.array([each.numpy()[0] > 0 for each in take_step(tf.constant(step))]) for step in range(steps)]


def test_the_same_rank_and_step_draw_the_same_again() -> None:
    assert np.array_equal(masks(1, 3), masks(1, 3))
    assert not np.array_equal(masks(1, 3), masks(1, 3, seed=1))


def test_ranks_layers_and_steps_draw_independently() -> None:
    """As masks of one process would: each keeps 1 - RATE of the units, and two agree as often as by chance."""
    drawn = np.concatenate([np.concatenate(masks(rank, 3)) for rank in range(3)])
    error = 5 * np.sqrt(0.25 / UNITS)  # five standard errors at most
    assert drawn.mean(1) == pytest.approx(1 - RATE, abs=error)
    agreement = [np.mean(one == other) for one, other in itertools.combinations(drawn, 2)]
    assert np.array(agreement) == pytest.approx(RATE**2 + (1 - RATE) ** 2, abs=error)


def test_draws_of_far_steps_are_other_ones() -> None:
    """No draw of a layer in a step is the first one of another step, whatever their distance."""
    generator = keras.layers.Dropout(RATE)
    model = keras.Sequential([keras.Input((UNITS,)), generator])
    draws = RandomDraws(model, 0, 0)

    def seeds(step: int) -> set[tuple[int, ...]]:
        draws.begin(tf.constant(step))
        return {tuple(keras.random.randint((4,), 0, 1 << 30, seed=generator.seed_generator).numpy()) for _ in range(9)}

    of_steps = [seeds(step) for step in (0, 1, 1024, 2047, 2048, 2049, 1 << 31)]
    assert len(set().union(*of_steps)) == 9 * len(of_steps)


def test_statistics_are_those_of_layers_that_learn() -> None:
    learning, frozen = keras.layers.BatchNormalization(), keras.layers.BatchNormalization(trainable=False)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), learning, keras.Sequential([frozen])])
    model.layers[0].trainable = False
    assert [id(each) for each in running_statistics(model)] == [
        id(learning.moving_mean),
        id(learning.moving_variance),
    ]

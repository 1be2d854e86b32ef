"""The gradient of a step, what the optimizer makes of it, and random draws, against the same arithmetic in numpy."""

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from train.config.recipe import Recipe
from train.tf_backend import optimizer as optimizer_module
from train.tf_backend.gradients import gradients_of
from train.tf_backend.optimizer import apply_finite, make_optimizer, trust
from train.tf_backend.state import RandomDraws, running_statistics

BATCH, FEATURES, CLASSES = 6, 5, 3
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(BATCH, FEATURES)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])
WEIGHTS = np.array([1, 1, 1, 1, 1, 0], np.float32)


def linear() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, bias_initializer="normal")])


@pytest.mark.parametrize(("accumulate", "xla", "smoothing"), [(1, False, 0.0), (3, False, 0.1), (2, True, 0.1)])
def test_it_is_that_of_the_mean_loss(accumulate: int, xla: bool, smoothing: float) -> None:
    model = linear()
    recipe = Recipe(batch=BATCH // accumulate, accumulate=accumulate, xla=xla, label_smoothing=smoothing)
    compute = tf.function(gradients_of(model, recipe, lambda loss: 8 * loss), autograph=False)
    gradients, sums = compute(tf.constant(INPUTS), tf.constant(LABELS), tf.constant(WEIGHTS))
    kernel, bias = (each.numpy() for each in model.variables)
    logits = INPUTS @ kernel + bias
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wanted = (1 - smoothing) * np.eye(CLASSES)[LABELS] + smoothing / CLASSES
    loss = -(wanted * np.log(probabilities)).sum(1) @ WEIGHTS
    slope = (probabilities - wanted) * WEIGHTS[:, None] / BATCH
    for ours, theirs in zip(gradients, (INPUTS.T @ slope, slope.sum(0)), strict=True):
        np.testing.assert_allclose(ours, 8 * theirs, rtol=1e-4, atol=1e-6)
    hits = (model(INPUTS).numpy().argmax(1) == LABELS)[:5].sum()
    assert [float(each) for each in sums] == [pytest.approx(loss, rel=1e-5), hits, 5]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batch_norm_sees_no_padding(accumulate: int) -> None:
    """Its moving mean is that of the examples alone, in as many parts as a step has."""
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.BatchNormalization(momentum=0.0), keras.layers.Dense(CLASSES)]
    )
    compute = tf.function(gradients_of(model, Recipe(batch=BATCH // accumulate, accumulate=accumulate), tf.identity))
    weights = np.array([1, 0, 1, 0, 0, 1], np.float32)
    _, sums = compute(tf.constant(INPUTS), tf.constant(LABELS), tf.constant(weights))
    last = INPUTS[weights > 0][3 * (accumulate - 1) // accumulate :]
    np.testing.assert_allclose(model.layers[0].moving_mean.numpy(), last.mean(0), rtol=1e-5)
    assert float(sums[2]) == 3


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_penalties_of_half_precision_are_added(policy: str) -> None:
    """An activity regularizer's is of the dtype of its layer."""

    def gradient(dtype: str) -> Any:
        keras.utils.set_random_seed(1)
        layer = keras.layers.Dense(CLASSES, activity_regularizer=keras.regularizers.L2(1.0), dtype=dtype)
        model = keras.Sequential([keras.Input((FEATURES,)), layer])
        (kernel, _), _ = gradients_of(model, Recipe(batch=BATCH), tf.identity)(INPUTS, LABELS, WEIGHTS)
        return kernel.numpy()

    exact = gradient("float32")
    assert np.linalg.norm(gradient(policy) - exact) < 0.02 * np.linalg.norm(exact)


def applied(recipe: Recipe, *gradients: tuple[Any, Any]) -> list[Any]:
    """What a linear model becomes."""
    model = linear()
    optimizer = make_optimizer(recipe, model.trainable_variables)
    optimizer.learning_rate = 0.5
    for each in gradients:
        optimizer.apply([tf.constant(part, tf.float32) for part in each])
    return [each.numpy() for each in model.variables]


KERNEL, BIAS = (each.numpy() for each in linear().variables)
GRADIENT = RANDOM.normal(size=KERNEL.shape), RANDOM.normal(size=BIAS.shape)


def test_nesterov_momentum_and_weight_decay_without_biases() -> None:
    kernel, bias = applied(Recipe(momentum=0.9, weight_decay=0.1), GRADIENT, GRADIENT)
    velocity, weights = np.zeros_like(KERNEL), KERNEL.astype(float)
    for _ in range(2):
        full = GRADIENT[0] + 0.1 * weights
        velocity = 0.9 * velocity - 0.5 * full
        weights = weights + 0.9 * velocity - 0.5 * full
    np.testing.assert_allclose(kernel, weights, rtol=1e-5)
    np.testing.assert_allclose(bias, BIAS - 0.5 * GRADIENT[1] * (1.9 + 1.9 + 0.9 * 0.9), rtol=1e-5)


@pytest.mark.parametrize(("name", "share", "before"), [("sgd", 1.0, 0), ("adam", 0.1, 1)])
def test_what_another_adds_between_reading_and_writing_stays(
    name: str, share: float, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asynchronous workers do. A share of each gradient is in the first moment afterwards."""
    kernel = linear().variables[0]
    optimizer = make_optimizer(Recipe(optimizer=name), [kernel])
    others, writes = [tf.constant(2 * GRADIENT[0], tf.float32)], itertools.count()

    def interrupted(write: Callable[..., None]) -> Callable[..., None]:
        def other_first(variable: Any, value: Any) -> None:
            if next(writes) == before:  # the first moment
                optimizer.apply(others)
            write(variable, value)

        return other_first

    for write in ("assign", "assign_add"):
        monkeypatch.setattr(optimizer, write, interrupted(getattr(optimizer, write)))
    optimizer.apply([tf.constant(GRADIENT[0], tf.float32)])
    moments = next(each.numpy() for each in optimizer.variables if each.shape == kernel.shape)
    np.testing.assert_allclose(moments, 3 * share * GRADIENT[0], rtol=1e-5)


@pytest.mark.parametrize("reads", [0, 1, 2, 3])
def test_adam_takes_no_step_from_half_an_update_of_another(reads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which one moment is there, and the other not, at the begin, or after so many reads of this worker."""
    kernel = linear().variables[0]
    before, others = kernel.numpy(), [tf.constant(GRADIENT[0], tf.float32)]
    optimizer = make_optimizer(Recipe(optimizer="adam"), [kernel])
    optimizer.learning_rate = 0.1
    write, found, values = optimizer.assign_add, optimizer_module.read, []

    def stop(variable: Any, value: Any) -> None:
        write(variable, value)
        raise InterruptedError

    def read(variable: Any) -> Any:
        values.append(found(variable))
        if len(values) == reads:
            optimizer.apply(others)
        return values[-1]

    if reads:
        monkeypatch.setattr(optimizer_module, "read", read)
    else:
        with monkeypatch.context() as patch, pytest.raises(InterruptedError):
            patch.setattr(optimizer, "assign_add", stop)
            optimizer.apply(others)
    optimizer.apply([tf.zeros(kernel.shape)])
    assert np.abs(kernel.numpy() - before).max() < 1


def test_gradients_are_clipped_by_their_global_norm() -> None:
    norm = np.sqrt(sum((each**2).sum() for each in GRADIENT))
    kernel, bias = applied(Recipe(momentum=0, clip_norm=0.1), GRADIENT)
    np.testing.assert_allclose(kernel, KERNEL - 0.5 * GRADIENT[0] * 0.1 / norm, rtol=1e-5)
    np.testing.assert_allclose(bias, BIAS - 0.5 * GRADIENT[1] * 0.1 / norm, rtol=1e-5)


def test_lars_brings_kernels_into_proportion() -> None:
    recipe = Recipe(momentum=0, optimizer="lars", lars_coefficient=0.01, weight_decay=0.1)
    kernel, bias = applied(recipe, GRADIENT)
    of_kernel, of_gradient = np.linalg.norm(KERNEL), np.linalg.norm(GRADIENT[0])
    rate = 0.01 * of_kernel / (of_gradient + 0.1 * of_kernel)
    np.testing.assert_allclose(kernel, KERNEL - 0.5 * rate * (GRADIENT[0] + 0.1 * KERNEL), rtol=1e-5)
    np.testing.assert_allclose(bias, BIAS - 0.5 * GRADIENT[1], rtol=1e-5)
    assert float(trust(np.zeros((2, 2)), np.ones((2, 2)), 0.1, 0.01)) == 1
    kernel = np.ones((3, 3, 2, 4), np.float32)  # of a convolution
    assert float(trust(2 * kernel, kernel, 0.0, 0.5)) == pytest.approx(1.0)


def test_float16_takes_no_step_where_a_gradient_is_not_finite() -> None:
    model = linear()
    optimizer = make_optimizer(Recipe(momentum=0, precision="float16"), model.trainable_variables)
    scale = float(optimizer.scale_loss(tf.constant(1.0)))
    optimizer.learning_rate = 0.5
    optimizer.apply([tf.constant(GRADIENT[0] * [np.inf, 1, 1], tf.float32), tf.constant(GRADIENT[1], tf.float32)])
    assert np.array_equal(model.variables[1].numpy(), BIAS)
    assert float(optimizer.scale_loss(tf.constant(1.0))) == scale / 2
    optimizer.apply([tf.constant(each * scale / 2, tf.float32) for each in GRADIENT])
    np.testing.assert_allclose(model.variables[0].numpy(), KERNEL - 0.5 * GRADIENT[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, 1.0])
def test_a_step_that_overflowed_in_the_reduction_is_not_taken(value: float) -> None:
    recipe, model = Recipe(momentum=0, compression="fp16"), linear()
    optimizer = make_optimizer(recipe, model.trainable_variables)
    optimizer.learning_rate = 0.5
    gradients = [tf.constant(GRADIENT[0] * [value, 1, 1], tf.float32), tf.constant(GRADIENT[1], tf.float32)]
    skips = tf.function(lambda: apply_finite(optimizer, gradients, recipe))()
    assert float(skips) == (value != 1)
    assert np.array_equal(model.variables[1].numpy(), BIAS) == (value != 1)
    assert np.isfinite(model.variables[0].numpy()).all()


DROPOUT, UNITS = 0.3, 4_000


class WithoutSeed(keras.layers.Layer):
    """Dropout by the generator that all layers share that have none of their own."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return keras.random.dropout(inputs, DROPOUT)


def masks(rank: int, steps: int, seed: int = 0) -> list[npt.NDArray[np.bool_]]:
    """What dropout layers keep at each step: (steps, layers, units)."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dropout(DROPOUT), keras.layers.Dropout(DROPOUT, seed=3), WithoutSeed(), WithoutSeed()]
    inputs = keras.Input((UNITS,))
    model = keras.Model(inputs, [layers[0](inputs), *(keras.Sequential([each])(inputs) for each in layers[1:])])
    draws = RandomDraws(model, seed, rank)

    @tf.function(autograph=False)
    def take_step(step: tf.Tensor) -> list[tf.Tensor]:
        draws.begin(step)
        return list(model(tf.ones((1, UNITS)), training=True))

    return [np.array([each.numpy()[0] > 0 for each in take_step(tf.constant(step))]) for step in range(steps)]


def test_seeds_ranks_layers_and_steps_draw_independently_and_the_same_again() -> None:
    """As masks of one process would: each keeps 1 - DROPOUT of the units, and two agree as often as by chance."""
    of_rank = masks(1, 3)
    assert np.array_equal(of_rank, masks(1, 3))
    drawn = np.concatenate([*of_rank, *masks(0, 3), *masks(0, 1, seed=1)])
    error = 5 * np.sqrt(0.25 / UNITS)  # five standard errors at most
    assert drawn.mean(1) == pytest.approx(1 - DROPOUT, abs=error)
    agreement = [np.mean(one == other) for one, other in itertools.combinations(drawn, 2)]
    assert np.array(agreement) == pytest.approx(DROPOUT**2 + (1 - DROPOUT) ** 2, abs=error)


def test_draws_of_far_steps_are_other_ones() -> None:
    """No draw of a layer in a step is the first one of another step, whatever their distance."""
    generator = keras.layers.Dropout(DROPOUT)
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
    assert [id(each) for each in running_statistics(model)] == [id(learning.moving_mean), id(learning.moving_variance)]

"""The gradient of a step, and what the optimizer makes of it, against the same arithmetic in numpy."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from train.config.recipe import Recipe
from train.model.gradients import gradients_of, sums_of
from train.model.optimizer import make_optimizer, trust

BATCH, FEATURES, CLASSES = 6, 5, 3
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(BATCH, FEATURES)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])
WEIGHTS = np.array([1, 1, 1, 1, 1, 0], np.float32)


def linear() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, bias_initializer="normal")])


def expected_gradient(model: keras.Model, smoothing: float = 0.0) -> tuple[Any, Any]:
    kernel, bias = (each.numpy() for each in model.variables)
    logits = INPUTS @ kernel + bias
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    wanted = (1 - smoothing) * np.eye(CLASSES)[LABELS] + smoothing / CLASSES
    slope = (probabilities - wanted) * WEIGHTS[:, None] / BATCH
    return INPUTS.T @ slope, slope.sum(0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("accumulate", "xla"), [(1, False), (3, False), (1, True), (2, True)])
def test_it_is_that_of_the_mean_loss(accumulate: int, xla: bool, smoothing: float) -> None:
    model = linear()
    recipe = Recipe(batch=BATCH // accumulate, accumulate=accumulate, xla=xla, label_smoothing=smoothing)
    compute = tf.function(gradients_of(model, recipe, lambda loss: 8 * loss), autograph=False)
    gradients, sums = compute(tf.constant(INPUTS), tf.constant(LABELS), tf.constant(WEIGHTS))
    for ours, theirs in zip(gradients, expected_gradient(model, smoothing), strict=True):
        np.testing.assert_allclose(ours, 8 * theirs, rtol=1e-4, atol=1e-6)
    assert float(sums[2]) == 5
    logits = model(INPUTS).numpy()
    assert float(sums[1]) == (logits.argmax(1) == LABELS)[:5].sum()


def test_a_smoothed_loss_is_that_of_smoothed_labels() -> None:
    logits = linear()(INPUTS)
    wanted = 0.8 * np.eye(CLASSES, dtype=np.float32)[LABELS] + 0.2 / CLASSES
    theirs = tf.nn.softmax_cross_entropy_with_logits(wanted, logits).numpy() @ WEIGHTS
    assert float(sums_of(logits, LABELS, WEIGHTS, 0.2)[0]) == pytest.approx(theirs, rel=1e-5)


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


def test_float16_takes_no_step_where_a_gradient_is_not_finite() -> None:
    recipe = Recipe(momentum=0, precision="float16")
    model = linear()
    optimizer = make_optimizer(recipe, model.trainable_variables)
    scale = float(optimizer.scale_loss(tf.constant(1.0)))
    optimizer.learning_rate = 0.5
    endless = GRADIENT[0].copy()
    endless[0, 0] = np.inf
    optimizer.apply([tf.constant(endless, tf.float32), tf.constant(GRADIENT[1], tf.float32)])
    assert np.array_equal(model.variables[1].numpy(), BIAS)
    assert float(optimizer.scale_loss(tf.constant(1.0))) == scale / 2
    optimizer.apply([tf.constant(each * scale / 2, tf.float32) for each in GRADIENT])
    np.testing.assert_allclose(model.variables[0].numpy(), KERNEL - 0.5 * GRADIENT[0], rtol=1e-4, atol=1e-6)

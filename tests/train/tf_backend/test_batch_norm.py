"""Synchronised batch norm in one process; test_equivalence.py has its steps on several ranks."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from etl.errors import UsageError
from train.tf_backend.batch_norm import SynchronisedBatchNormalization, synchronised
from train.tf_backend.builders import build, mlp

SHAPE = (16, 12, 3)
BATCH, STEPS = 8, 2


def norm(shape: tuple[int, ...], **options: Any) -> keras.Model:
    """Batch norm alone, with a gamma and a beta that are not those that it begins with."""
    gamma = keras.initializers.RandomUniform(0.5, 2)
    layer = keras.layers.BatchNormalization(momentum=0.9, gamma_initializer=gamma, beta_initializer="ones", **options)
    return keras.Sequential([keras.Input(shape), layer])


def nested() -> keras.Model:
    """A batch norm that is used twice, two models deep, in a model with a second path."""
    inputs = keras.Input(SHAPE)
    inner = keras.Sequential([keras.Input(SHAPE), norm(SHAPE), keras.layers.ReLU()])
    features = keras.layers.Add()([inner(inner(inputs)), keras.layers.Dropout(0.0)(inputs)])
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Flatten()(features)))


def steps(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """Outputs and gradients of steps on uneven values, and what the variables are then."""
    generator = np.random.default_rng(5)
    for _ in range(STEPS):
        grown = np.arange(1, BATCH + 1).reshape(-1, *[1] * len(model.input_shape[1:]))
        inputs = tf.constant(generator.normal(2.0 * grown, grown, (BATCH, *model.input_shape[1:])), tf.float32)
        factors = tf.constant(generator.normal(size=(BATCH, 1)), tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = tf.reshape(tf.cast(model(inputs, training=True), tf.float32), (BATCH, -1))
            loss = tf.reduce_sum(tf.reduce_mean(tf.square(outputs + 1), 1, keepdims=True) * factors)
        yield "outputs", outputs
        weights = [each.value for each in model.trainable_variables]
        yield from (("gradient", each) for each in tape.gradient(loss, [inputs, *weights]))
    yield from (("variable", each.value) for each in model.variables)


@pytest.mark.parametrize(
    "make",
    [lambda: norm((5,), epsilon=1e-5), lambda: norm(SHAPE, axis=1), lambda: norm(SHAPE, dtype="mixed_float16"), nested],
    ids=["vectors", "channels first", "half", "nested"],
)
def test_a_rank_alone_takes_the_steps_of_keras_layer(
    make: Callable[[], keras.Model], request: pytest.FixtureRequest
) -> None:
    keras.utils.set_random_seed(3)
    expected = list(steps(make()))
    keras.utils.set_random_seed(3)
    found = steps(synchronised(make(), tf.identity))
    for (kind, ours), (_, theirs) in zip(found, expected, strict=True):
        rounding = 1e-3 if "half" in request.node.name and kind != "variable" else 1e-5
        np.testing.assert_allclose(ours, theirs, rtol=rounding, atol=rounding * np.abs(theirs).max(), err_msg=kind)


@pytest.mark.parametrize(
    ("make", "norms"), [(nested, 1), (lambda: build("cnn", SHAPE, 4, [1, 2, 3], [1, 2, 3]), 3)], ids=["nested", "cnn"]
)
def test_every_batch_norm_is_replaced_and_nothing_else(make: Any, norms: int) -> None:
    """A checkpoint of the one fits the other: the variables have the same names, order and values."""
    local = make()
    for variable in local.trainable_variables:
        variable.assign(variable + 1)
    before = [(each.name, each.numpy()) for each in local.variables]
    layers = layers_of(local)
    replaced = synchronised(local, tf.identity)
    own = [each for each in layers_of(replaced) if isinstance(each, SynchronisedBatchNormalization)]
    assert len(own) == norms
    assert [each.name for each in own] == [each.name for each in layers if is_norm(each)]
    assert {id(each) for each in layers_of(replaced) if not is_norm(each)} == {
        id(each) for each in layers if not is_norm(each)
    }
    for (name, value), variable in zip(before, replaced.variables, strict=True):
        assert variable.name == name
        assert np.array_equal(variable.numpy(), value)
    assert len(replaced.trainable_variables) == len(local.trainable_variables)


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Its layers at any depth, without inputs."""
    return [each for each in model._flatten_layers() if not isinstance(each, keras.Model | keras.layers.InputLayer)]


def is_norm(layer: keras.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)


def test_a_model_without_batch_norm_stays_as_it_is() -> None:
    model = mlp(SHAPE, 4)
    assert synchronised(model, tf.identity) is model


def test_the_variance_of_what_lies_far_from_zero_is_exact() -> None:
    """Once the moving mean has come near: float32 has no digit left for the variance in the mean of the squares."""
    pixels = np.random.default_rng(0).normal(5_000, [0.5, 1, 2], (64, 4, 4, 3)).astype(np.float32)
    layer = SynchronisedBatchNormalization(reduce=tf.identity, epsilon=0, momentum=0.0)
    layer.build(pixels.shape)
    layer.moving_mean.assign([4_999, 5_000, 5_001])
    layer(pixels, training=True)
    np.testing.assert_allclose(layer.moving_variance, pixels.astype(np.float64).var((0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(layer.moving_mean, pixels.astype(np.float64).mean((0, 1, 2)), rtol=1e-6)


def test_a_frozen_one_and_one_that_evaluates_reduce_nothing() -> None:
    def fail(tensor: tf.Tensor) -> tf.Tensor:
        raise AssertionError(tensor)

    layer = SynchronisedBatchNormalization(reduce=fail)
    pixels = np.ones((2, 3), np.float32)
    assert layer(pixels, training=False).shape == (2, 3)
    with pytest.raises(AssertionError):
        layer(pixels, training=True)
    layer.trainable = False
    assert layer(pixels, training=True).shape == (2, 3)


class WithNorm:
    def __init__(self) -> None:
        super().__init__()
        self.norm = keras.layers.BatchNormalization()

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.norm(inputs)


class OwnCall(WithNorm, keras.Model):
    """A model whose layers only its own code knows."""


class OwnLayer(WithNorm, keras.layers.Layer):
    """A layer that contains a batch norm."""


class OwnNorm(keras.layers.BatchNormalization):
    """A batch norm with its own computation."""


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: keras.Sequential([keras.Input((5,)), OwnCall()]), "own_call is a OwnCall"),
        (lambda: keras.Sequential([keras.Input((5,)), OwnLayer()]), "batch_normalization is a BatchNormalization"),
        (lambda: keras.Sequential([keras.Input((5,)), OwnNorm()]), "own_norm is a OwnNorm"),
    ],
    ids=["model", "layer", "norm"],
)
def test_a_batch_norm_out_of_reach_is_refused(make: Any, name: str) -> None:
    keras.utils.clear_session()
    model = make()
    model(np.ones((2, 5), np.float32))
    line = f"--batch-norm synchronised: {name}, whose batch norm cannot be replaced; .* or give --batch-norm local"
    with pytest.raises(UsageError, match=line):
        synchronised(model, tf.identity)


def test_a_mask_is_refused() -> None:
    layer = SynchronisedBatchNormalization(reduce=tf.identity, name="here")
    with pytest.raises(UsageError, match="takes no mask, and here is given one; give --batch-norm local"):
        layer(np.ones((2, 3, 4), np.float32), training=True, mask=np.ones((2, 3), bool))

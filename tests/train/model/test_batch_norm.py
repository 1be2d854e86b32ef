"""Synchronised batch norm: ranks take the steps of one with the whole batch, in any model that it can be put in."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from etl.errors import UsageError
from tests.lib.commands import horovodrun, succeeded
from tests.lib.ranks.batch_norm_steps import CASES, nested
from train.model.batch_norm import SynchronisedBatchNormalization, synchronised
from train.model.builders import build, mlp
from train.model.resnet import resnet50

SCRIPT = "tests/lib/ranks/batch_norm_steps.py"
SHAPE = (16, 12, 3)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks have after steps with half of a batch each, and one process with the whole."""
    out = tmp_path_factory.mktemp("steps")
    succeeded(horovodrun(2, SCRIPT, out))
    return out


def require_same_steps(out: Path, name: str, case: str) -> None:
    """What two ranks have is equal on both where it must be, and as a whole close to what one process has."""
    one, first, second = (np.load(out / f"{file}.npz") for file in (f"whole-{case}", f"{name}-0", f"{name}-1"))
    assert one.files == first.files == second.files
    for key in one.files:
        by_example = key.endswith(("outputs", "inputs"))
        if not by_example:
            assert np.array_equal(first[key], second[key]), f"{key} differs between ranks"
        whole = np.concatenate([first[key], second[key]]) if by_example else first[key]
        rounding = 1e-3 if case == "half" and not key.startswith("variable") else 1e-5
        largest = np.abs(one[key]).max()
        np.testing.assert_allclose(whole, one[key], rtol=rounding, atol=rounding * largest, err_msg=key)


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_ranks_take_the_steps_of_one_with_the_whole_batch(case: str, steps: Path) -> None:
    """Outputs, gradients of inputs and of weights, moving statistics."""
    require_same_steps(steps, case, case)
    # negative control: without the all-reduce the same checks fail
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        require_same_steps(steps, f"local-{case}", case)


@pytest.mark.parametrize(
    ("make", "norms"),
    [
        (lambda: nested(SHAPE, 4), 1),
        (lambda: resnet50(SHAPE, 4), 53),
        (lambda: build("cnn", SHAPE, 4, [1, 2, 3], [1, 2, 3]), 3),
    ],
    ids=["nested", "resnet50", "built"],
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
    assert (replaced.name, replaced.input_shape, replaced.input_dtype) == (
        *(local.name, local.input_shape, local.input_dtype),
    )
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


def test_its_configuration_is_that_of_keras_layer() -> None:
    options = {"momentum": 0.8, "epsilon": 0.01, "axis": 1, "scale": False, "name": "own"}
    own = SynchronisedBatchNormalization(reduce=tf.identity, **options)
    assert own.get_config() == keras.layers.BatchNormalization(**options).get_config()


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


class OwnCall(keras.Model):
    """A model whose layers only its own code knows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dense = keras.layers.BatchNormalization(), keras.layers.Dense(4)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(self.norm(inputs))


class OwnLayer(keras.layers.Layer):
    """A layer that contains a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = keras.layers.BatchNormalization()

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.norm(inputs)


class OwnNorm(keras.layers.BatchNormalization):
    """A batch norm with its own computation."""


class OwnSequence(keras.Sequential):
    """Computes more than its layers do."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        return 2 * super().call(inputs, training, mask)


def own_sequence() -> keras.Model:
    return OwnSequence([keras.layers.BatchNormalization()])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (OwnCall, "own_call is a OwnCall"),
        (lambda: keras.Sequential([keras.Input((5,)), OwnCall()]), "own_call is a OwnCall"),
        (lambda: keras.Sequential([keras.Input((5,)), OwnLayer()]), "batch_normalization is a BatchNormalization"),
        (lambda: keras.Sequential([keras.Input((5,)), OwnNorm()]), "own_norm is a OwnNorm"),
        (own_sequence, "own_sequence is a OwnSequence"),
    ],
    ids=["model", "inner model", "layer", "norm", "sequence"],
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

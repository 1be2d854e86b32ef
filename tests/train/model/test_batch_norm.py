"""Synchronised batch norm: ranks take the steps of one with the whole batch, in any model that it can be put in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from etl.errors import UsageError
from tests.lib.commands import horovodrun, succeeded
from tests.lib.ranks.batch_norm_steps import CASES, nested, norm
from tests.lib.ranks.tiny import tiny
from train.model.batch_norm import SynchronisedBatchNormalization, synchronised
from train.model.builders import build, cnn, mlp
from train.model.resnet import resnet50

SCRIPT = "tests/lib/ranks/batch_norm_steps.py"
SHAPE = (16, 12, 3)
Arrays = Mapping[str, npt.NDArray[Any]]


def identity(tensor: tf.Tensor) -> tf.Tensor:
    """The sum over all ranks, where there is one."""
    return tensor


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
    # the twin: without the all-reduce the very same checks fail
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        require_same_steps(steps, f"local-{case}", case)


@pytest.mark.parametrize(
    ("model", "norms"),
    [
        (lambda: tiny(SHAPE, 4), 1),
        (lambda: cnn(SHAPE, 4), 3),
        (lambda: nested(SHAPE, 4), 1),
        (lambda: resnet50(SHAPE, 4), 53),
        (lambda: build("cnn", SHAPE, 4, [1, 2, 3], [1, 2, 3]), 3),
    ],
    ids=["tiny", "cnn", "nested", "resnet50", "built"],
)
def test_every_batch_norm_is_replaced_and_nothing_else(model: Any, norms: int) -> None:
    """A checkpoint of the one fits the other: the variables have the same names, order and values."""
    local = model()
    for variable in local.trainable_variables:
        variable.assign(variable + 1)
    before = [(each.name, each.numpy()) for each in local.variables]
    layers = [each for each in local._flatten_layers() if not isinstance(each, keras.Model)]
    twin = synchronised(local, identity)
    twins = [each for each in twin._flatten_layers() if not isinstance(each, keras.Model)]
    own = [each for each in twins if isinstance(each, SynchronisedBatchNormalization)]
    assert len(own) == norms
    assert [each.name for each in own] == [each.name for each in layers if is_norm(each)]
    kept = {id(each) for each in twins if not is_norm(each) and not isinstance(each, keras.layers.InputLayer)}
    assert kept == {id(each) for each in layers if not is_norm(each) and not isinstance(each, keras.layers.InputLayer)}
    assert (twin.name, twin.input_shape, twin.input_dtype) == (local.name, local.input_shape, local.input_dtype)
    for (name, value), variable in zip(before, twin.variables, strict=True):
        assert variable.name == name
        assert np.array_equal(variable.numpy(), value)
    assert len(twin.trainable_variables) == len(local.trainable_variables)


def is_norm(layer: keras.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization)


def test_a_model_without_batch_norm_stays_as_it_is() -> None:
    model = mlp(SHAPE, 4)
    assert synchronised(model, identity) is model


def test_its_configuration_is_that_of_keras_layer() -> None:
    options = {"momentum": 0.8, "epsilon": 0.01, "axis": 1, "scale": False, "name": "own"}
    own = SynchronisedBatchNormalization(reduce=identity, **options)
    assert own.get_config() == keras.layers.BatchNormalization(**options).get_config()


def test_the_variance_of_what_lies_far_from_zero_is_exact() -> None:
    """Once the moving mean has come near: float32 has no digit left for the variance in the mean of the squares."""
    pixels = np.random.default_rng(0).normal(5_000, [0.5, 1, 2], (64, 4, 4, 3)).astype(np.float32)
    layer = SynchronisedBatchNormalization(reduce=identity, epsilon=0, momentum=0.0)
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
    """A layer with a batch norm in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = keras.layers.BatchNormalization()

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.norm(inputs)


class OwnNorm(keras.layers.BatchNormalization):
    """A batch norm that is computed in a way of its own."""


class OwnSequence(keras.Sequential):
    """Does something more than its layers."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        return 2 * super().call(inputs, training, mask)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("inner", "named"),
    [
        (OwnCall, "own_call is a OwnCall"),
        (OwnLayer, "batch_normalization is a BatchNormalization"),
        (OwnNorm, "own_norm is a OwnNorm"),
        (lambda: OwnSequence([keras.layers.BatchNormalization()]), "own_sequence is a OwnSequence"),
    ],
    ids=["model", "layer", "norm", "sequence"],
)
@pytest.mark.parametrize("depth", [0, 1])
def test_a_batch_norm_out_of_reach_is_told(inner: Any, named: str, depth: int) -> None:
    keras.utils.clear_session()
    made = inner()
    model = made if isinstance(made, keras.Model) and not depth else keras.Sequential([keras.Input((5,)), made])
    model(np.ones((2, 5), np.float32))
    line = f"--batch-norm synchronised: {named}, whose batch norm cannot be replaced; .* or give --batch-norm local"
    with pytest.raises(UsageError, match=line):
        synchronised(model, identity)


def test_a_mask_is_told() -> None:
    layer = SynchronisedBatchNormalization(reduce=identity, name="here")
    with pytest.raises(UsageError, match="takes no mask, and here is given one; give --batch-norm local"):
        layer(np.ones((2, 3, 4), np.float32), training=True, mask=np.ones((2, 3), bool))


def test_it_is_keras_layer_where_there_is_one_rank() -> None:
    pixels = np.random.default_rng(0).normal(3, 2, (8, *SHAPE)).astype(np.float32)
    keras.utils.set_random_seed(0)
    local = norm(SHAPE)
    expected = local(pixels, training=True)
    twin = synchronised(norm(SHAPE), identity)
    for ours, theirs in zip(twin.variables, local.variables, strict=True):
        if "moving" not in ours.name:
            ours.assign(theirs)
    np.testing.assert_allclose(twin(pixels, training=True), expected, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(twin.variables, local.variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)

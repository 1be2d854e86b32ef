"""The models by name: their sizes, what ResNet-50 is made of, as published, and pictures that a model does not fit."""

import sys
from math import prod
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from etl.errors import UsageError
from tests.lib.commands import REPOSITORY
from train.config.builder import Builder, find_builder
from train.tf_backend.builders import BUILDERS, build, cnn, mlp
from train.tf_backend.resnet import resnet50


@pytest.fixture(scope="module")
def published() -> keras.Model:
    """The ResNet-50 of ImageNet."""
    return resnet50((224, 224, 3), 1000)


def test_resnet50_has_the_published_parameters_and_multiply_adds(published: keras.Model) -> None:
    """Exactly those of torchvision's, of version 1.5: its strides are in the 3x3 convolutions."""
    trainable = sum(prod(variable.shape) for variable in published.trainable_variables)
    moving = sum(prod(variable.shape) for variable in published.non_trainable_variables)
    assert (trainable, moving) == (25_557_032, 2 * 26_560)
    weighted = [layer for layer in published.layers if isinstance(layer, keras.layers.Conv2D | keras.layers.Dense)]
    assert sum(prod(each.output.shape[1:-1]) * prod(each.kernel.shape) for each in weighted) == 4_089_184_256


def test_the_first_weights_of_resnet50_are_those_of_its_recipe(published: keras.Model) -> None:
    """Each block begins as its shortcut, and convolutions keep the scale of gradients."""
    norms = [layer for layer in published.layers if isinstance(layer, keras.layers.BatchNormalization)]
    zero = [layer.name for layer in norms if not keras.ops.any(layer.gamma)]
    blocks = [(stage, block) for stage, number in enumerate((3, 4, 6, 3), 1) for block in range(1, number + 1)]
    assert zero == [f"stage{stage}_block{block}_3_norm" for stage, block in blocks]
    assert all(float(keras.ops.min(layer.gamma)) == 1 for layer in norms if layer.name not in zero)
    assert {(layer.momentum, layer.epsilon) for layer in norms} == {(0.9, 1e-5)}
    for layer in published.layers:
        if isinstance(layer, keras.layers.Conv2D):
            deviation = (2 / (layer.filters * prod(layer.kernel_size))) ** 0.5
            assert float(keras.ops.std(layer.kernel)) == pytest.approx(deviation, rel=0.05), layer.name
    assert float(keras.ops.std(published.get_layer("logits").kernel)) == pytest.approx(0.01, rel=0.01)


class Subclassed(keras.Model):
    """A model whose output has a shape only once it is called."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.flat, self.dense = keras.layers.Flatten(), keras.layers.Dense(classes)

    def call(self, pixels: Any) -> Any:
        return self.dense(self.flat(pixels))


def sequence_of(*layers: keras.Layer) -> Builder:
    return lambda shape, _: keras.Sequential([keras.Input(shape), *layers])


def test_a_subclassed_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILDERS, "own", lambda _, classes: Subclassed(classes))
    model = build("own", (2, 2, 1), 4, [1], [1])
    assert (model.output_shape, [each.shape for each in model.trainable_variables]) == ((None, 4), [(4, 4), (4,)])


@pytest.mark.parametrize(
    ("builder", "line"),
    [
        (lambda *_: Subclassed(3), r"'own' gives \(None, 3\), not logits of shape \(batch, 4\)"),
        (lambda *_: "weights", "'own' gives str, not a Keras model"),
        (sequence_of(keras.layers.Flatten()), "'own' has no weights to train"),
        (
            sequence_of(keras.layers.Flatten(), keras.layers.Dense(4, dtype="bfloat16", name="last")),
            "last/kernel is of bfloat16, which no checkpoint contains; keep",
        ),
        (
            sequence_of(keras.layers.Conv2D(2, 3), keras.layers.Flatten(), keras.layers.Dense(4)),
            r"'own' cannot be built for pictures of 2x2x1 \(height x width x channels\): .*; give another",
        ),
    ],
    ids=["classes", "type", "no weights", "dtype", "size"],
)
def test_a_model_that_does_not_fit_is_refused(builder: Builder, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILDERS, "own", builder)
    with pytest.raises(UsageError, match=line) as raised:
        build("own", (2, 2, 1), 4, [1], [1])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        *((name, "give mlp, cnn, resnet50, or module:function for your own") for name in (".x:y", "a:", "some.module")),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("json:nothing", r"/json/__init__\.py has no 'nothing'"),
        ("json:__name__", "is not a function"),
        ("builtins:max", "no signature found for builtin .*; give a function of an image's shape and the number of"),
        ("os:getcwd", "too many positional arguments; give a function of an image's shape and the number of classes"),
    ],
)
def test_a_name_that_is_not_of_a_builder_is_refused(name: str, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        find_builder(name, BUILDERS)


def test_the_mlp_is_784_1024_10() -> None:
    assert mlp((28, 28, 1), 10).count_params() == 784 * 1024 + 1024 + 1024 * 10 + 10


@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 28, 1), (57, 33, 3)])
def test_the_cnn_takes_any_size(shape: tuple[int, int, int]) -> None:
    assert cnn(shape, 7).output_shape == (None, 7)


def test_a_model_begins_with_normalisation() -> None:
    model = build("mlp", (2, 2, 3), 4, mean=[10, 20, 30], std=[1, 2, 4])
    pixels = np.array([[[[11, 24, 30]] * 2] * 2], dtype=np.uint8)
    assert np.allclose(keras.ops.convert_to_numpy(model.layers[0](pixels)), [1, 2, 0])


def test_a_users_module_may_be_called_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").write_text("from train.tf_backend.builders import mlp as own\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(REPOSITORY / "train")  # as of train/main.py
    try:
        assert find_builder("model:own", BUILDERS) is mlp
    finally:
        sys.modules.pop("model", None)


def test_a_users_function_imports_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("from train.tf_backend.builders import mlp\n")
    (tmp_path / "late.py").write_text("def own(*arguments):\n    from beside import mlp\n    return mlp(*arguments)\n")
    monkeypatch.chdir(tmp_path)
    try:
        assert build("late:own", (2, 2, 1), 4, [1], [1]).output_shape == (None, 4)
    finally:
        for name in ("late", "beside"):
            sys.modules.pop(name, None)


BUILT = "import keras\ndef build(shape, classes):\n    "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("def build(shape, classes)\n    pass\n", "bad.py, line 1: expected ':'"),
        ("import absent_module\n", "bad.py, line 1: ModuleNotFoundError: No module named 'absent_module'"),
        ("\nnumber = int('x')\n", "bad.py, line 2: ValueError: invalid literal for int() with base 10: 'x'"),
        (BUILT + "return leras.Sequential()\n", "bad.py, line 3: NameError: name 'leras' is not defined"),
        (BUILT + "return keras.layers.Dense()\n", "bad.py, line 3: TypeError: Dense.__init__() missing 1 required"),
    ],
    ids=["syntax", "import", "value", "name", "arguments"],
)
def test_a_mistake_in_a_users_module_is_named(
    text: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "bad", raising=False)
    with pytest.raises(UsageError) as raised:
        build("bad:build", (2, 2, 1), 4, [1], [1])
    assert str(raised.value).startswith(f"--model 'bad:build': {line}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("error", ["MemoryError()", "ImportError('x.so: failed to map segment from shared object')"])
def test_a_lack_of_memory_is_not_a_mistake(error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("scant_1", f"raise {error}\n"), ("scant_2", f"{BUILT}raise {error}\n")):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        with pytest.raises((MemoryError, ImportError)):
            build(f"{name}:build", (2, 2, 1), 4, [1], [1])
        sys.modules.pop(name, None)

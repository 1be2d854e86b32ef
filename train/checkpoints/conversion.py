"""Checkpoints of TensorFlow as those of PyTorch, and back: the project's own models. Pure.

Both frameworks have the same layers in `train.tf_backend` and `train.torch_backend`; names and axes differ. A kernel of
a convolution is (height, width, inputs, outputs) in Keras and (outputs, inputs, height, width) in PyTorch, that of a
dense layer (inputs, outputs) and (outputs, inputs).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from etl.errors import UsageError
from train.checkpoints.safetensors_file import Arrays

CONVOLUTION, NORM, DENSE = "convolution", "norm", "dense"
RESNET_BLOCKS = (3, 4, 6, 3)  # of each stage
MOMENTA = {"momentum": "momentum_buffer"}  # what is kept of a weight, by Keras' name and PyTorch's: SGD and LARS
MOMENTS = {"momentum": "exp_avg", "velocity": "exp_avg_sq"}  # Adam

# by kind of layer: Keras' name of a weight, PyTorch's, and whether it is trained
WEIGHTS = {
    CONVOLUTION: [("kernel", "weight", True)],
    NORM: [
        ("gamma", "weight", True),
        ("beta", "bias", True),
        ("moving_mean", "running_mean", False),
        ("moving_variance", "running_var", False),
    ],
    DENSE: [("kernel", "weight", True), ("bias", "bias", True)],
}


@dataclass(frozen=True)
class Weight:
    """One weight of a model: its place in Keras' order, its layer in Keras, its names, and whether it is trained."""

    number: int
    layer: str
    kind: str
    torch: str
    is_trained: bool

    @property
    def keras(self) -> str:
        """As `train.tf_backend.trainer` names it."""
        return f"{self.number:04d}-{self.kind}"


def to_torch(array: np.ndarray) -> np.ndarray:
    """A weight of Keras, or its momentum, with the axes of PyTorch."""
    return np.ascontiguousarray(array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T)


def to_keras(array: np.ndarray) -> np.ndarray:
    """The inverse of `to_torch`."""
    return np.ascontiguousarray(array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T)


def layers_of(model: str) -> Iterator[tuple[str, str, str]]:
    """Kind, name in Keras and name in PyTorch of each layer with weights, in Keras' order. Raises UsageError."""
    if model == "mlp":
        yield from ((DENSE, "sequential_dense", "1"), (DENSE, "sequential_dense_1", "3"))
    elif model == "cnn":
        for stage in range(3):
            counted = f"_{stage}" if stage else ""
            yield CONVOLUTION, f"sequential_conv2d{counted}", f"{4 * stage}"
            yield NORM, f"sequential_batch_normalization{counted}", f"{4 * stage + 1}"
        yield DENSE, "sequential_dense", "14"
    elif model == "resnet50":
        yield from ((CONVOLUTION, "stem_conv", "stem.conv"), (NORM, "stem_norm", "stem.norm"))
        for stage, blocks in enumerate(RESNET_BLOCKS, 1):
            for block in range(1, blocks + 1):
                yield from block_layers(f"stage{stage}_block{block}", has_shortcut=block == 1)
        yield DENSE, "logits", "logits"
    else:
        raise UsageError(
            f"--model {model} of this run cannot be converted between TensorFlow and PyTorch (mlp, cnn and resnet50"
            " can); evaluate and promote a run of PyTorch with --strategy ddp"
        )


def block_layers(name: str, has_shortcut: bool) -> Iterator[tuple[str, str, str]]:
    """Those of a block of ResNet-50; Keras has the shortcut's beside the last convolution and norm."""
    for number in (1, 2, 3):
        yield CONVOLUTION, f"{name}_{number}_conv", f"{name}.conv{number}"
        if has_shortcut and number == 3:
            yield CONVOLUTION, f"{name}_shortcut_conv", f"{name}.shortcut.conv"
        yield NORM, f"{name}_{number}_norm", f"{name}.norm{number}"
    if has_shortcut:
        yield NORM, f"{name}_shortcut_norm", f"{name}.shortcut.norm"


def weights_of(model: str) -> list[Weight]:
    """The weights of one of the project's models, in Keras' order. Raises UsageError for another model."""
    found: list[Weight] = []
    for layer_kind, layer, torch in layers_of(model):
        for kind, of_torch, is_trained in WEIGHTS[layer_kind]:
            found.append(Weight(len(found), layer, kind, f"{torch}.{of_torch}", is_trained))
    return found


def convert_to_torch(model: str, groups: Mapping[str, Arrays], step: int) -> dict[str, Arrays]:
    """The groups "model" and "optimizer" of a TensorFlow checkpoint as PyTorch's trainer has them."""
    weights, optimizer = weights_of(model), groups["optimizer"]
    trained = [each for each in weights if each.is_trained]
    is_adam = any(name.endswith("_velocity") for name in optimizer)
    updates = next((array for name, array in optimizer.items() if name.endswith("-iteration")), step)
    kept: Arrays = {f"step.{each.torch}": np.array(updates, np.float32) for each in trained} if is_adam else {}
    for suffix, name in (MOMENTS if is_adam else MOMENTA).items():
        arrays = [optimizer[each] for each in sorted(optimizer) if each.endswith(f"_{suffix}")]
        kept |= {f"{name}.{each.torch}": to_torch(array) for each, array in zip(trained, arrays, strict=False)}
    return {"model": {each.torch: to_torch(groups["model"][each.keras]) for each in weights}, "optimizer": kept}


def convert_to_tensorflow(model: str, groups: Mapping[str, Arrays], step: int) -> dict[str, Arrays]:
    """The groups of a PyTorch checkpoint of ``step`` as Keras' trainer has them."""
    weights, optimizer = weights_of(model), groups["optimizer"]
    names = MOMENTS if any(name.startswith("exp_avg.") for name in optimizer) else MOMENTA
    updates = next((array for name, array in optimizer.items() if name.startswith("step.")), step)
    kept: list[tuple[str, np.ndarray]] = [
        ("iteration", np.array(updates, np.int64)),
        ("learning_rate", np.array(0, np.float32)),
    ]
    for each in weights:
        for suffix, name in names.items():
            if (array := optimizer.get(f"{name}.{each.torch}")) is not None:
                kept.append((f"{each.layer}_{each.kind}_{suffix}", to_keras(array)))
    return {
        "model": {each.keras: to_keras(groups["model"][each.torch]) for each in weights},
        "optimizer": {f"{number:04d}-{name}": array for number, (name, array) in enumerate(kept)},
    }


Convert = Callable[[str, Mapping[str, Arrays], int], dict[str, Arrays]]
CONVERSIONS: dict[str, Convert] = {"torch": convert_to_torch, "tensorflow": convert_to_tensorflow}  # by the target

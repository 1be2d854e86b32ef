"""Models by name, and first weights. Those of `train.tf_backend` have the same layers and number of parameters.

Each takes float32 pixels of shape (batch, channels, height, width), of zero mean and unit variance over the training
split, and gives logits of shape (batch, classes).
"""

import gc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from etl.errors import UsageError
from train.checkpoints.safetensors_file import CODES
from train.config.builder import Builder, ImageShape, find_builder, misfit, name_mistakes
from train.torch_backend.branches import Branches

BATCH_NORM_MOMENTUM = 0.1  # of the new value, where Keras' 0.9 is of the old one
CNN_EPSILON, RESNET_EPSILON = 1e-3, 1e-5
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # of ResNet-50: (inner channels, blocks)
EXPANSION = 4  # channels that leave a block, for each inner one
INCEPTIONS = (  # of GoogLeNet: channels of 1x1; of 3x3, reduced and then; of 5x5, reduced and then; after the pooling
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
POOLED_BEFORE = (2, 7)  # inceptions


class FlattenPixels(nn.Module):
    """To shape (batch, height * width * channels), by rows, then columns, then channels, as Keras has pixels."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` of shape (batch, channels, height, width), flattened."""
        return pixels.permute(0, 2, 3, 1).flatten(1)


def dense(inputs: int, outputs: int) -> nn.Linear:
    """A dense layer with Keras' first weights: Glorot and Bengio 2010, uniform; biases are 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(shape: ImageShape, classes: int) -> nn.Module:
    """One hidden layer of 1,024: for 28x28 gray images and 10 classes, 784-1024-10."""
    height, width, channels = shape
    return nn.Sequential(FlattenPixels(), dense(height * width * channels, 1024), nn.ReLU(), dense(1024, classes))


def cnn(shape: ImageShape, classes: int) -> nn.Module:
    """Three stages of convolution, batch norm and pooling, for images of any size; 0.1 million parameters."""
    layers: list[nn.Module] = []
    inputs = shape[2]
    for filters in (32, 64, 128):
        convolution = nn.Conv2d(inputs, filters, 3, padding=1, bias=False)
        nn.init.xavier_uniform_(convolution.weight)
        norm = nn.BatchNorm2d(filters, CNN_EPSILON, BATCH_NORM_MOMENTUM)
        layers += [convolution, norm, nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
        inputs = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), dense(inputs, classes))


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1 to the channels that leave; plus the inputs, projected if shapes differ."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        wide = EXPANSION * channels
        self.conv1, self.norm1 = convolved(inputs, channels, 1), normalised(channels)
        self.conv2, self.norm2 = convolved(channels, channels, 3, stride), normalised(channels)
        self.conv3, self.norm3 = convolved(channels, wide, 1), normalised(wide)
        nn.init.zeros_(self.norm3.weight)  # each block begins as its shortcut: Goyal et al. 2017 (arXiv:1706.02677)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != wide:
            self.shortcut = nn.Sequential(OrderedDict(conv=convolved(inputs, wide, 1, stride), norm=normalised(wide)))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Features of shape (batch, 4 * ``channels``, height / ``stride``, width / ``stride``), rounded up."""
        features = torch.relu(self.norm1(self.conv1(pixels)))
        features = torch.relu(self.norm2(self.conv2(features)))
        return torch.relu(self.norm3(self.conv3(features)) + self.shortcut(pixels))


def convolved(inputs: int, filters: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution with the first weights of He et al. 2015 (arXiv:1502.01852), by the outputs."""
    layer = nn.Conv2d(inputs, filters, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def normalised(channels: int) -> nn.BatchNorm2d:
    """Batch norm as ResNet-50 and GoogLeNet have it."""
    return nn.BatchNorm2d(channels, RESNET_EPSILON, BATCH_NORM_MOMENTUM)


def resnet50(shape: ImageShape, classes: int) -> nn.Module:
    """ResNet-50, version 1.5 (see `train.tf_backend.resnet`): 25.6 million parameters for 1,000 classes."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = nn.Sequential(
        OrderedDict(conv=convolved(shape[2], 64, 7, 2), norm=normalised(64), relu=nn.ReLU(), pool=nn.MaxPool2d(3, 2, 1))
    )
    inputs = 64
    for stage, (channels, blocks) in enumerate(STAGES, 1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            layers[f"stage{stage}_block{block}"] = Bottleneck(inputs, channels, stride)
            inputs = EXPANSION * channels
    logits = nn.Linear(inputs, classes)
    nn.init.normal_(logits.weight, std=0.01)
    nn.init.zeros_(logits.bias)
    return nn.Sequential(OrderedDict(**layers, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), logits=logits))


def unit(inputs: int, filters: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    """A convolution, batch norm and ReLU."""
    return convolved(inputs, filters, size, stride), normalised(filters), nn.ReLU()


def inception(inputs: int, channels: Sequence[int]) -> Branches:
    """Convolutions of 1x1, 3x3 and 5x5 and a pooling, side by side."""
    one, to_three, three, to_five, five, pooled = channels
    return Branches(
        {
            "one": nn.Sequential(*unit(inputs, one, 1)),
            "three": nn.Sequential(*unit(inputs, to_three, 1), *unit(to_three, three, 3)),
            "five": nn.Sequential(*unit(inputs, to_five, 1), *unit(to_five, five, 5)),
            "pool": nn.Sequential(nn.MaxPool2d(3, 1, 1), *unit(inputs, pooled, 1)),
        }
    )


def googlenet(shape: ImageShape, classes: int) -> nn.Module:
    """GoogLeNet of Szegedy et al. 2014 (arXiv:1409.4842, table 1), with batch norm and without auxiliary classifiers:
    7.0 million parameters for 1,000 classes.
    """
    layers = [*unit(shape[2], 64, 7, 2), nn.MaxPool2d(3, 2, 1), *unit(64, 64, 1), *unit(64, 192, 3)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 192
    for number, channels in enumerate(INCEPTIONS):
        if number in POOLED_BEFORE:
            layers.append(nn.MaxPool2d(3, 2, 1))
        layers.append(inception(inputs, channels))
        one, _, three, _, five, pooled = channels
        inputs = one + three + five + pooled
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), dense(inputs, classes))


BUILDERS: dict[str, Builder] = {"mlp": mlp, "cnn": cnn, "resnet50": resnet50, "googlenet": googlenet}


def is_out_of_memory(error: BaseException) -> bool:
    """True if PyTorch, or NumPy, could not allocate memory, of a GPU or of the host."""
    lacks = ("DefaultCPUAllocator", "Cannot allocate memory", "std::bad_alloc")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(each in str(error) for each in lacks)


def build(name: str, shape: ImageShape, classes: int) -> nn.Module:
    """The model called ``name`` for pictures of ``shape`` (height, width, channels), on the CPU.

    Raises UsageError if the model does not fit the pictures or the classes, or a user's code has a mistake.
    """
    builder = find_builder(name, BUILDERS)
    try:
        with name_mistakes(name):
            model: Any = builder(shape, classes)
            if not isinstance(model, nn.Module):
                raise UsageError(f"--model {name!r} gives {type(model).__name__}, not a torch.nn.Module")
            require_logits(name, model, shape, classes)
    except (RuntimeError, ValueError) as error:  # what PyTorch raises if shapes do not fit
        if is_out_of_memory(error):
            raise
        raise misfit(name, shape, error) from error
    if not any(each.requires_grad for each in model.parameters()):
        raise UsageError(f"--model {name!r} has no weights to train")
    for path, tensor in model.state_dict().items():
        if (kind := str(tensor.dtype).removeprefix("torch.")) not in CODES:
            raise UsageError(
                f"--model {name!r}: {path} is of {kind}, which no checkpoint can contain; keep weights in float32, and"
                " compute in another dtype by --precision"
            )
        if tensor.is_floating_point() and not tensor.is_meta and not tensor.isfinite().all():
            raise UsageError(
                f"--model {name!r}: {path} has values that are not finite, which no checkpoint can contain; register"
                " such a buffer with persistent=False"
            )
    for module in model.modules():  # a count that its momentum makes needless, and that differs between ranks
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module.num_batches_tracked = None
    return model


def require_logits(name: str, model: nn.Module, shape: ImageShape, classes: int) -> None:
    """Raise UsageError if it does not give logits for two pictures; a model of the user's in training, too.

    Weights of lazy layers are made; all others, and buffers, stay as they are.
    """
    pixels = torch.zeros(2, shape[2], *shape[:2])
    is_for_gpus = any(isinstance(each, nn.SyncBatchNorm) for each in model.modules())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        given = [model.eval()(pixels)]
        if name not in BUILDERS and not is_for_gpus:
            buffers = [each.clone() for each in model.buffers()]
            given.append(model.train()(pixels))
            for each, old in zip(model.buffers(), buffers, strict=True):
                each.copy_(old)
    for each, when in zip(given, ("", " in training"), strict=False):
        found = tuple(each.shape) if isinstance(each, torch.Tensor) else type(each).__name__
        if found != (2, classes):
            raise UsageError(f"--model {name!r} gives {found}{when}, not logits of shape (batch, {classes})")


def build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """What ``build`` makes, with weights that have no memory yet (`torch.nn.Module.to_empty`); or as it is, if it
    needs their values, or if tensors would be left without memory that are not among the model's state.
    """
    state: set[int] | None = None
    with suppress(Exception), torch.device("meta"):  # whatever a user's code raises where it reads a value
        model = build()
        state = {id(each) for each in model.state_dict(keep_vars=True).values()}
    gc.collect()
    tensors = (each for each in gc.get_objects() if issubclass(type(each), torch.Tensor))
    if state is None or any(each.is_meta and id(each) not in state for each in tensors):
        return build()
    return model

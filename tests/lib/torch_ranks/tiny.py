"""Models of PyTorch that are small."""

import math
import os

import numpy as np
import torch
from torch import nn

from train.torch_backend.branches import Branches

Shape = tuple[int, int, int]


def smooth(shape: Shape, classes: int) -> nn.Module:
    """Without a ReLU, at whose kink a rounding error decides on a whole gradient."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 32), nn.Tanh(), nn.Linear(32, classes))


def tiny(shape: Shape, classes: int) -> nn.Module:
    """With batch norm and dropout: all the state that a model can have."""
    convolution = nn.Conv2d(shape[2], 4, 3, stride=2, bias=False)
    return nn.Sequential(
        convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.LazyLinear(classes)
    )


def deep(shape: Shape, classes: int) -> nn.Module:
    """As `smooth`, of three layers with weights; the last two are a pair that can be divided. A tanh is there twice."""
    inputs, tanh = shape[0] * shape[1] * shape[2], nn.Tanh()
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 33), tanh, nn.Linear(33, 32), tanh, nn.Linear(32, classes))


def shared(shape: Shape, classes: int) -> nn.Module:
    """One layer has weights and is there twice."""
    layer = nn.Linear(32, 32)
    inputs, last = nn.Linear(shape[0] * shape[1] * shape[2], 32), nn.Linear(32, classes)
    return nn.Sequential(nn.Flatten(), inputs, layer, nn.Tanh(), layer, last)


def normalised(shape: Shape, classes: int) -> nn.Module:
    """With batch norm, but no kink."""
    convolution = nn.Conv2d(shape[2], 4, 3, stride=2, bias=False)
    layers = (convolution, nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.LazyLinear(32), nn.Tanh())
    return nn.Sequential(*layers, nn.Linear(32, classes))


def flat(shape: Shape, classes: int) -> nn.Module:
    """Its batch norm has one value of each channel of an example, of which PyTorch's takes two at least."""
    inputs = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, classes))


class Scaled(nn.Module):
    """Multiplies by a tensor that is not in the model's state, so each rank must make it itself."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = [torch.tensor(0.9)]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * self.factors[0]


class Detached(nn.Module):
    """Its input gets no gradient."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.detach()


def branched(shape: Shape, classes: int) -> nn.Module:
    """Two modules with branches, of different widths and weights, some without any; and a pair of layers. No kink."""
    inputs = shape[0] * shape[1] * shape[2]
    joined = {f"of_{width}": nn.Linear(inputs, width) for width in (5, 8, 3)}
    heads = {"first": nn.Tanh(), "second": Detached()}
    added = {name: nn.Sequential(each, nn.Linear(16 + 1, 6)) for name, each in heads.items()}
    pooled = nn.Sequential(nn.Unflatten(1, (1, inputs)), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    branches = Branches({"pooled": pooled, **joined}), Branches(added, "sum")
    pair = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, classes)
    return nn.Sequential(nn.Flatten(), *branches, Scaled(), *pair)


def noisy_branches(shape: Shape, classes: int) -> nn.Module:
    """With batch norm in branches, and dropout in them and behind them."""

    def branch(kernel: int) -> nn.Module:
        convolution = nn.Conv2d(4, kernel, kernel, padding=kernel // 2)
        return nn.Sequential(convolution, nn.BatchNorm2d(kernel), nn.Tanh(), nn.Dropout(0.1))

    first = nn.Sequential(nn.Conv2d(shape[2], 4, 3, stride=2), nn.BatchNorm2d(4), nn.Tanh())
    inception = Branches({f"of_{kernel}": branch(kernel) for kernel in (1, 3, 5)})
    return nn.Sequential(first, inception, nn.Flatten(), nn.Dropout(0.1), nn.LazyLinear(classes))


class Residual(nn.Sequential):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        flatten, first, second, last = self
        features = first(flatten(features))
        logits: torch.Tensor = last(features + second(features))
        return logits


def residual(shape: Shape, classes: int) -> nn.Module:
    """Adds what its layers, one after the other, do not."""
    layers = nn.Linear(shape[0] * shape[1] * shape[2], 33), nn.Linear(33, 33), nn.Linear(33, classes)
    return Residual(nn.Flatten(), *layers)


class Interposed(nn.Module):
    """Has a pair of layers with something between them that is not a layer of theirs."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        inputs = shape[0] * shape[1] * shape[2]
        self.pair = nn.Sequential(nn.Linear(inputs, 33), nn.Linear(33, classes))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        features = self.pair[0](pixels.flatten(1))
        logits: torch.Tensor = self.pair[1](features / features.norm(dim=1, keepdim=True))
        return logits


class Hooked(nn.Tanh):
    """Does something else in training, as a hook may."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found = super().forward(features)
        return found - found.mean(1, keepdim=True) if self.training else found


def hooked(shape: Shape, classes: int) -> nn.Module:
    inputs = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), Hooked(), nn.Linear(32, classes))


class TwiceInTraining(nn.Linear):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits = super().forward(features)
        return torch.cat([logits, logits], 1) if self.training else logits


def twice_in_training(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), TwiceInTraining(shape[0] * shape[1] * shape[2], classes))


class SometimesUsed(nn.Module):
    """Leaves a layer out at random: other ranks use it in the same step. Its first layer works in place. It assigns its
    running mean in each step, and has a buffer with infinity.
    """

    running: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relu, self.layer = nn.ReLU(inplace=True), nn.Linear(width, width)
        self.register_buffer("running", torch.zeros(()))
        self.register_buffer("lowest", torch.full((width,), -math.inf), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = torch.maximum(self.relu(features), self.lowest)
        if self.training:
            self.running = 0.9 * self.running + 0.1 * features.detach().mean()
        return features + self.layer(features) if torch.rand(()) > 0.5 else features


def sometimes_used(shape: Shape, classes: int) -> nn.Module:
    inputs = nn.Linear(shape[0] * shape[1] * shape[2], 32)
    return nn.Sequential(nn.Flatten(), inputs, SometimesUsed(32), nn.Linear(32, classes))


class Temperature(nn.Module):
    """Has a number outside of the model's state, which has memory wherever the model is made."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.from_numpy(np.array(value, np.float32)), persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * self.value


def in_place(shape: Shape, classes: int) -> nn.Module:
    """As `smooth`, but each of the last layers begins in place, and has a number of its own."""
    inputs, tanh = shape[0] * shape[1] * shape[2], nn.Hardtanh(inplace=True)
    later = (nn.Sequential(tanh, Temperature(0.7), nn.Linear(32, width)) for width in (32, classes))
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), *later)


def leaving(shape: Shape, classes: int) -> nn.Module:
    os._exit(0)


def exiting(shape: Shape, classes: int) -> nn.Module:
    raise SystemExit(0)


def printing(shape: Shape, classes: int) -> nn.Module:
    print("a line of the model")
    return smooth(shape, classes)


class Mistaken(nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        mistake: torch.Tensor = features.no_such_method()
        return mistake


def mistaken(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Mistaken(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


class PartlyUsed(nn.Module):
    """One of its layers has no part in the logits, and none in the gradients. Not an `nn.Sequential`."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        inputs = shape[0] * shape[1] * shape[2]
        self.used, self.unused = nn.Linear(inputs, classes), nn.Linear(inputs, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.used(pixels.flatten(1))
        return logits


def wide(shape: Shape, classes: int) -> nn.Module:
    """Of 206 MB for pictures of 784 pixels, half of them in each of two linear layers, which are a pair."""
    inputs, hidden = shape[0] * shape[1] * shape[2], 1 << 15
    layers = (nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, inputs), nn.Tanh(), nn.Linear(inputs, classes))
    return nn.Sequential(nn.Flatten(), *layers)


def wide_branches(shape: Shape, classes: int) -> nn.Module:
    """Of as much memory as `wide`, in branches."""
    inputs, hidden = shape[0] * shape[1] * shape[2], 1 << 12
    branches = {
        f"branch_{number}": nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, inputs))
        for number in range(8)
    }
    return nn.Sequential(nn.Flatten(), Branches(branches, "sum"), nn.Tanh(), nn.Linear(inputs, classes))

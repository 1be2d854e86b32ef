"""Models of PyTorch that are small."""

import torch
from torch import nn

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
    """As `smooth`, of three layers with weights; the last two are a pair that can be divided."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(shape[0] * shape[1] * shape[2], 33),
        nn.Tanh(),
        nn.Linear(33, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


def normalised(shape: Shape, classes: int) -> nn.Module:
    """With batch norm, but no kink."""
    convolution = nn.Conv2d(shape[2], 4, 3, stride=2, bias=False)
    layers = (convolution, nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.LazyLinear(32), nn.Tanh())
    return nn.Sequential(*layers, nn.Linear(32, classes))


class NotSequential(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(pixels.flatten(1))
        return logits


def not_sequential(shape: Shape, classes: int) -> nn.Module:
    return NotSequential(shape[0] * shape[1] * shape[2], classes)


def wide(shape: Shape, classes: int) -> nn.Module:
    """Of 206 MB for pictures of 784 pixels, half of them in each of two linear layers, which are a pair."""
    inputs, hidden = shape[0] * shape[1] * shape[2], 1 << 15
    layers = (nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, inputs), nn.Tanh(), nn.Linear(inputs, classes))
    return nn.Sequential(nn.Flatten(), *layers)

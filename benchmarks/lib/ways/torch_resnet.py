"""ResNet-50, version 1.5, for PyTorch: the network of train/tf_backend/resnet.py."""

import torch
from torch import nn

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # (inner channels, blocks)
EXPANSION = 4


class ResNet50(nn.Module):
    """From pictures to logits."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels = 64
        for stage, (inner, number) in enumerate(STAGES):
            for block in range(number):
                blocks.append(Bottleneck(channels, inner, 2 if stage and not block else 1))
                channels = EXPANSION * inner
        stem = [*convolved(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
        self.layers = nn.Sequential(*stem, *blocks, *head)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return self.layers(pictures)


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1 to the channels that leave; plus the inputs, projected where shapes differ."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        wide = EXPANSION * inner
        first, second = convolved(channels, inner, 1, 1), convolved(inner, inner, 3, stride)
        self.features = nn.Sequential(*first, nn.ReLU(True), *second, nn.ReLU(True), *convolved(inner, wide, 1, 1))
        self.shortcut = nn.Identity() if channels == wide else nn.Sequential(*convolved(channels, wide, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The features that leave the block."""
        return self.relu(self.features(inputs) + self.shortcut(inputs))


def convolved(channels: int, filters: int, size: int, stride: int) -> list[nn.Module]:
    """A convolution padded alike on all sides, and batch norm."""
    return [nn.Conv2d(channels, filters, size, stride, size // 2, bias=False), nn.BatchNorm2d(filters)]

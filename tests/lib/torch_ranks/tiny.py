"""Models of PyTorch that are small."""

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

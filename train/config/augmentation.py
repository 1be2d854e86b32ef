"""What is done at random to a training picture, how much of it, and which part of another picture is shown. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

Size = tuple[int, int]

GRAY = (0.299, 0.587, 0.114)  # what red, green and blue add to the brightness that is seen (ITU-R BT.601)
CROP_ATTEMPTS = 10
RATIO = (3 / 4, 4 / 3)  # of the width of a crop to its height
COLOUR = 0.4  # brightness, contrast and saturation are multiplied by factors from 1 - this to 1 + this


@dataclass(frozen=True)
class Augmentation:
    """What to do at random; nothing unless asked.

    A crop takes at least the part ``least_area`` of the picture, from above 0 to 1, with a ratio of `RATIO`: Szegedy et
    al., "Going Deeper with Convolutions", 2014 (arXiv:1409.4842), as torchvision's RandomResizedCrop has it. Colour is
    three factors by `COLOUR`: Krizhevsky's brightness, contrast and saturation as torchvision's ColorJitter has them.
    """

    crop: bool = False
    flip: bool = False
    colour: bool = False
    least_area: float = 0.08

    @classmethod
    def of(cls, names: Sequence[str], least_area: float = 0.08) -> Self:
        """What is named: crop (of at least this part of the picture), flip, colour."""
        return cls("crop" in names, "flip" in names, "colour" in names, least_area)


NOTHING = Augmentation()

CENTRE = 0.875  # the part of a larger picture's side that is shown if nothing is random: 224 of 256, as is usual


def fallback_window(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """The largest window in the centre of a picture whose ratio is within `RATIO`: (top, left, height, width)."""
    low, high = RATIO
    height, width = shape[0], shape[1]
    if width < low * height:
        height = max(1, round(width / low))
    elif width > high * height:
        width = max(1, round(height * high))
    return (shape[0] - height) // 2, (shape[1] - width) // 2, height, width


def centre_window(shape: Size, size: Size) -> tuple[int, int, int, int]:
    """The window (top, left, height, width) in the middle of a picture of ``shape`` that is shown at ``size``.

    It has the form of ``size``, and is not resized if the picture is only a little larger.
    """
    scale = min(shape[0] / size[0], shape[1] / size[1])
    scale = min(scale, max(1.0, CENTRE * scale))
    height, width = (max(1, round(scale * side)) for side in size)
    return (shape[0] - height) // 2, (shape[1] - width) // 2, height, width

"""What is done at random to a training picture. The same seed, the same picture: stateless operations only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import tensorflow as tf

from etl.errors import UsageError

Range = tuple[float, float]

GRAY = (0.299, 0.587, 0.114)  # what red, green and blue add to the brightness that is seen (ITU-R BT.601)
CROP_ATTEMPTS = 10


@dataclass(frozen=True)
class Augmentation:
    """What to do at random, and how much of it; nothing unless asked.

    ``area`` is the part of the picture that a crop takes, ``ratio`` its width by its height: Szegedy et al., "Going
    Deeper with Convolutions", 2014 (arXiv:1409.4842). Colour is three factors from 1 - x to 1 + x: Krizhevsky's
    brightness, contrast and saturation as torchvision's ColorJitter has them.
    """

    crop: bool = False
    flip: bool = False
    colour: bool = False
    area: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def __post_init__(self) -> None:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise UsageError(f"area {self.area}: give two parts of the picture, from above 0 to 1, the smaller first")
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise UsageError(f"ratio {self.ratio}: give two numbers above 0, the smaller first")
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} {getattr(self, name):g} is out of range; give a number from 0 to 1")

    @classmethod
    def of(cls, names: Sequence[str], least_area: float = 0.08) -> Self:
        """The usual amounts of what is named: crop (of at least this part of the picture), flip, colour."""
        return cls("crop" in names, "flip" in names, "colour" in names, area=(least_area, 1.0))


NOTHING = Augmentation()


def random_window(augmentation: Augmentation, shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """A window of a picture of ``shape`` (height, width, channels): int32 of (top, left, height, width)."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros((1, 0, 4)),
        seed,
        aspect_ratio_range=augmentation.ratio,
        area_range=augmentation.area,
        max_attempts=CROP_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def flip_at_random(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The picture or its mirror image, left for right."""
    flipped = tf.random.stateless_uniform((), seed) < 0.5
    return tf.cond(flipped, lambda: tf.reverse(pixels, [1]), lambda: pixels)


def recolour_at_random(augmentation: Augmentation, pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Other brightness, contrast and saturation, in this order: float32 of the same shape, from 0 to 255.

    Contrast mixes each pixel with the picture's mean gray, saturation with the gray of its own. So all three are one
    matrix by channel and one number to add.
    """
    height, width, channels = pixels.shape
    spread = tf.constant([augmentation.brightness, augmentation.contrast, augmentation.saturation])
    brightness, contrast, saturation = tf.unstack(1 + spread * tf.random.stateless_uniform((3,), seed, -1, 1))
    gray = tf.constant(GRAY if channels == 3 else [1 / channels] * channels)
    matrix = saturation * tf.eye(channels) + (1 - saturation) * tf.tile(gray[:, tf.newaxis], (1, channels))
    # by rows of the picture first, which is twice as fast as by pixels
    mean = tf.reduce_mean(tf.reshape(tf.reduce_mean(pixels, axis=0), (width, channels)), axis=0)
    mean_gray = tf.reduce_sum(mean * gray)
    mixed = tf.matmul(tf.reshape(pixels, (height * width, channels)), brightness * contrast * matrix)
    shifted = mixed + brightness * (1 - contrast) * mean_gray
    return tf.reshape(tf.clip_by_value(shifted, 0, 255), (height, width, channels))

"""What is done at random to a training picture. The same seed, the same picture: stateless operations only."""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from train.config.augmentation import COLOUR, CROP_ATTEMPTS, GRAY, RATIO, Augmentation, fallback_window


def random_window(augmentation: Augmentation, shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """A window of a picture of ``shape`` (height, width, channels): int32 of (top, left, height, width).

    As torchvision's RandomResizedCrop: the first of `CROP_ATTEMPTS` windows that fits, uniform in area, in the
    logarithm of the ratio, and in position; the `fallback_window` if none fits.
    """
    whole, fallback = np.array(shape[:2], np.float32), np.array(fallback_window(shape), np.float32)
    least = np.array([whole.prod() * augmentation.least_area, math.log(RATIO[0])], np.float32)
    most = np.array([whole.prod(), math.log(RATIO[1])], np.float32)
    uniform = tf.random.stateless_uniform((CROP_ATTEMPTS + 1, 2), seed)
    drawn = least + (most - least) * uniform[:-1]
    sides = tf.round(tf.sqrt(drawn[:, :1] * tf.exp(drawn[:, 1:] * (-1, 1))))
    fits = tf.reduce_all((sides >= 1) & (sides <= whole), axis=1)
    corners = tf.floor(uniform[-1] * (whole - sides + 1))
    found = tf.boolean_mask(tf.concat([corners, sides], axis=1), fits)
    return tf.cast(tf.concat([found, fallback[np.newaxis]], axis=0)[0], tf.int32)


def flip_at_random(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The picture or its mirror image, left for right."""
    flipped = tf.random.stateless_uniform((), seed) < 0.5
    return tf.cond(flipped, lambda: tf.reverse(pixels, [1]), lambda: pixels)


def recolour_at_random(pixels: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Other brightness, contrast and saturation, in this order: float32 of the same shape, from 0 to 255.

    Contrast mixes each pixel with the picture's mean gray, saturation with the gray of its own. So all three are one
    matrix by channel and one number to add.
    """
    height, width, channels = pixels.shape
    brightness, contrast, saturation = tf.unstack(1 + COLOUR * tf.random.stateless_uniform((3,), seed, -1, 1))
    gray = tf.constant(GRAY if channels == 3 else [1 / channels] * channels)
    matrix = saturation * tf.eye(channels) + (1 - saturation) * tf.tile(gray[:, tf.newaxis], (1, channels))
    # by rows of the picture first, which is twice as fast as by pixels
    mean = tf.reduce_mean(tf.reshape(tf.reduce_mean(pixels, axis=0), (width, channels)), axis=0)
    mean_gray = tf.reduce_sum(mean * gray)
    mixed = tf.matmul(tf.reshape(pixels, (height * width, channels)), brightness * contrast * matrix)
    shifted = mixed + brightness * (1 - contrast) * mean_gray
    return tf.reshape(tf.clip_by_value(shifted, 0, 255), (height, width, channels))

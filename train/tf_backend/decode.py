"""From serialized examples to pixels of the wanted size, augmented or not: what ``tf.data`` runs."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from etl.formats.example import ENCODED, KEY, LABEL
from etl.slices.manifest import Manifest
from train.config.augmentation import NOTHING, Augmentation, Size, centre_window
from train.tf_backend.augment import flip_at_random, random_window, recolour_at_random

FLOATS = {"FLOAT16": tf.float16, "FLOAT32": tf.float32}


@dataclass(frozen=True)
class Decoder:
    """Decodes examples of ``manifest`` to pictures of ``size`` (height, width), uint8.

    A picture that is augmented depends on the seed of the epoch and its number in its split, and on nothing else.
    """

    manifest: Manifest
    size: Size
    augmentation: Augmentation = NOTHING

    def parse(
        self, serialized: tf.Tensor, numbers: tf.Tensor, weights: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """What `decode` takes, of a batch of records: in one call, because it takes longer record by record."""
        features = {
            ENCODED: tf.io.FixedLenFeature((), tf.string),
            LABEL: tf.io.FixedLenFeature((), tf.int64),
            KEY: tf.io.FixedLenFeature((), tf.string),
        }
        parsed = tf.io.parse_example(serialized, features)
        seeds = tf.stack([tf.fill(tf.shape(numbers), seed), numbers], axis=1)
        return parsed[ENCODED], seeds, parsed[LABEL], weights, parsed[KEY]

    def decode(self, encoded: tf.Tensor, seed: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Pixels of one record, and its label, weight and key as they were."""
        return self.pixels(encoded, seed), *others

    def pixels(self, encoded: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """The picture of an example: shape (height, width, channels). ``seed`` is (epoch's seed, its number), int64."""
        wanted, shape = self.augmentation, (*self.manifest.size, self.manifest.channels)
        seeds = tf.random.experimental.stateless_split(seed, 3)
        if wanted.crop:
            pixels = _decode_window(self.manifest, encoded, random_window(wanted, shape, seeds[0]))
        else:
            window = centre_window(shape[:2], self.size)
            whole = window == (0, 0, *shape[:2])
            pixels = _decode(self.manifest, encoded) if whole else _decode_window(self.manifest, encoded, window)
        if wanted.flip:
            pixels = flip_at_random(pixels, seeds[1])
        if pixels.shape[:2] != self.size:
            pixels = tf.image.resize(pixels, self.size)
        if wanted.colour:
            pixels = recolour_at_random(tf.cast(pixels, tf.float32), seeds[2])
        pixels = tf.ensure_shape(pixels, (*self.size, shape[2]))
        return pixels if pixels.dtype == tf.uint8 else tf.cast(tf.round(pixels), tf.uint8)


def _decode(manifest: Manifest, encoded: tf.Tensor) -> tf.Tensor:
    shape = (*manifest.size, manifest.channels)
    decoders: dict[str, Callable[..., tf.Tensor]] = {"JPEG": tf.io.decode_jpeg, "PNG": tf.io.decode_png}
    if manifest.format in decoders:
        return tf.ensure_shape(decoders[manifest.format](encoded, channels=shape[2]), shape)
    if manifest.format in FLOATS:
        floats = tf.cast(tf.reshape(tf.io.decode_raw(encoded, FLOATS[manifest.format]), shape), tf.float32)
        levels = floats * tf.constant(manifest.divide_by, tf.float32) + tf.constant(manifest.subtract, tf.float32)
        return tf.cast(tf.round(levels), tf.uint8)
    return tf.reshape(tf.io.decode_raw(encoded, tf.uint8), shape)


def _decode_window(manifest: Manifest, encoded: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """The ``window`` of the picture; of a JPEG little else is decoded."""
    if manifest.format == "JPEG":
        return tf.image.decode_and_crop_jpeg(encoded, window, channels=manifest.channels)
    top, left, height, width = tf.unstack(window)
    return tf.image.crop_to_bounding_box(_decode(manifest, encoded), top, left, height, width)

"""From an image file's bytes to the pixels that `etl.images.normalize` makes of them, by TensorFlow's own ops alone.

It is the same picture by the same rules: `etl.images.decode` for what is decoded, `etl.images.geometry` for the part
and its size, `etl.images.resize` for how it comes there. What differs: a JPEG is decoded at 1, 1/2, 1/4 or 1/8 of its
size, for these are what TensorFlow offers of libjpeg's eight; colour profiles are not applied; of PNG alone
transparency shows the background, and of JPEG alone EXIF decides the orientation. A BMP of other than 24 bits, and WebP
with alpha, are refused.
"""

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from etl.images.config import NormalizeConfig
from etl.images.containers import jpeg, png
from etl.images.geometry import CROP, PAD
from etl.images.normalize import SPARE, in_channels
from train.serving.exif import is_mirrored, is_turned, make_upright, read_orientation

_RATIOS = (1, 2, 4, 8)
_INKS = 4  # components of a JPEG that is meant for printing
_PNG_DEPTH = 24  # where IHDR has it: PNG, 11.2.1
_BMP, _BMP_BITS = b"BM", 28  # where BITMAPINFOHEADER has biBitCount
_LUMA = (19_595, 38_470, 7_471)  # ITU-R BT.601 in 65,536ths, as Pillow has it


class TensorPlan(NamedTuple):
    """`etl.images.geometry.Plan` as tensors, int64 of shape (2,): the corners of its box, its size and its offset."""

    start: tf.Tensor
    stop: tf.Tensor
    size: tf.Tensor
    offset: tf.Tensor


class _StoredPixels(NamedTuple):
    """Pixels as a file stores them, uint8 (height, width, channels), the sides of all of it, int64 (2,), and by how
    much those are longer."""

    pixels: tf.Tensor
    sides: tf.Tensor
    ratio: tf.Tensor


@dataclass(frozen=True)
class RawPixels:
    """What brings files to the size and colour of ``config``, of which all images have one size."""

    config: NormalizeConfig

    def read(self, data: tf.Tensor) -> tf.Tensor:
        """The picture of a JPEG, PNG, GIF, BMP or WebP file: uint8, of shape (height, width, channels).

        Raises InvalidArgumentError for what is none, or is damaged.
        """
        is_jpeg = _begins_with(data, jpeg.SIGNATURE)
        orientation = tf.cond(is_jpeg, lambda: read_orientation(data), lambda: tf.constant(1, tf.int64))
        is_turned_ = is_turned(orientation)
        stored = tf.cond(is_jpeg, lambda: self._read_jpeg(data, is_turned_), lambda: self._read_other(data))
        pixels = make_upright(tf.cast(stored.pixels, tf.float32), orientation)
        sides = _swapped(stored.sides, is_turned_)
        plan = self.plan(sides)
        decoded, start, stop, whole = (
            tf.cast(each, tf.float64) for each in (tf.shape(pixels)[:2], plan.start, plan.stop, sides)
        )
        surplus = decoded - whole / stored.ratio  # what libjpeg rounds up lies beyond the last row and column as stored
        shift = tf.where(is_mirrored(orientation), surplus, 0)
        return self._apply(pixels, plan, start / stored.ratio + shift, stop / stored.ratio + shift)

    def plan(self, source: tf.Tensor) -> TensorPlan:
        """What `etl.images.geometry.make_plan` gives for an upright picture of these sides, int64 (2,)."""
        target = tf.constant((self.config.height, self.config.width), tf.int64)
        rows, columns = tf.unstack(
            target * tf.reverse(source, [0])
        )  # how much larger the target is, both times the same
        nothing = tf.zeros(2, tf.int64)
        if self.config.fit == CROP:
            fits = tf.where(rows >= columns, 0, 1)  # the axis that is kept whole
            kept = _rounded_ratio(target * source[fits], target[fits])
            kept = tf.minimum(source, tf.maximum(kept, 1))
            start = (source - kept) // 2
            return TensorPlan(start, start + kept, target, nothing)
        if self.config.fit == PAD:
            fits = tf.where(rows <= columns, 0, 1)
            size = tf.maximum(_rounded_ratio(source * target[fits], source[fits]), 1)
            if self.config.only_shrink:
                size = tf.where(target[fits] > source[fits], source, size)
            return TensorPlan(nothing, source, size, (target - size) // 2)
        return TensorPlan(nothing, source, target, nothing)

    def _read_jpeg(self, data: tf.Tensor, is_turned: tf.Tensor) -> _StoredPixels:
        """At the least ratio of its size at which nothing of the wanted size is lost."""
        height, width, components = tf.unstack(tf.cast(tf.image.extract_jpeg_shape(data), tf.int64))
        sides = tf.stack([height, width])
        plan = self.plan(_swapped(sides, is_turned))
        kept = plan.stop - plan.start
        least = -(-SPARE * _swapped(sides, is_turned) * plan.size // kept)
        sufficient = [tf.reduce_all(-(-sides // ratio) >= _swapped(least, is_turned)) for ratio in _RATIOS[1:]]
        number = tf.reduce_sum(tf.cast(sufficient, tf.int32))
        channels = self.config.channels

        def decode(ratio: int, channels: int) -> tf.Tensor:
            return tf.io.decode_jpeg(data, channels, ratio, dct_method="INTEGER_ACCURATE")

        # libjpeg makes no gray of ink
        pixels = tf.cond(
            components == _INKS,
            lambda: self._in_color(decode(1, 3)),
            lambda: tf.switch_case(number, [lambda ratio=ratio: decode(ratio, channels) for ratio in _RATIOS]),
        )
        ratio = tf.where(components != _INKS, tf.gather(_RATIOS, number), 1)
        return _StoredPixels(pixels, sides, tf.cast(ratio, tf.float64))

    def _read_other(self, data: tf.Tensor) -> _StoredPixels:
        is_bmp = _begins_with(data, _BMP)
        # TensorFlow takes the numbers of a palette's colours for levels of gray; of nothing it makes no picture
        known = tf.where(is_bmp & (_octet(data, _BMP_BITS) < 24), "", data)
        pixels = tf.cond(
            _begins_with(data, png.SIGNATURE),
            lambda: self._on_background(_decode_png(data)),
            lambda: tf.io.decode_image(known, channels=3, expand_animations=False),
        )
        return _StoredPixels(self._in_color(pixels), tf.shape(pixels, tf.int64)[:2], tf.constant(1, tf.float64))

    def _on_background(self, pixels: tf.Tensor) -> tf.Tensor:
        """Red, green and blue of pixels with alpha, int32."""
        alpha = pixels[..., 3:]
        mixed = pixels[..., :3] * alpha + tf.constant(self.config.background) * (255 - alpha)
        return tf.cast((2 * mixed + 255) // 510, tf.uint8)

    def _in_color(self, pixels: tf.Tensor) -> tf.Tensor:
        """Pixels of red, green and blue in as many channels as are wanted."""
        if self.config.channels == 3:
            return pixels
        luma = tf.reduce_sum(tf.cast(pixels, tf.int32) * _LUMA, axis=-1, keepdims=True)
        return tf.cast((luma + 32_768) // 65_536, tf.uint8)

    def _apply(self, pixels: tf.Tensor, plan: TensorPlan, start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        """``pixels``, upright, by ``plan``, of which ``start`` and ``stop`` are the corners of its box in them.

        A box between pixels is one of a JPEG that was decoded at a part of its size.
        """
        whole = tf.reduce_all(tf.equal([start, stop], tf.floor([start, stop])))
        first = tf.where(whole, start, 0)
        last = tf.where(whole, stop, tf.cast(tf.shape(pixels)[:2], tf.float64))
        (top, left), (bottom, right) = (tf.unstack(tf.cast(corner, tf.int32)) for corner in (first, last))
        resized = _resize(pixels[top:bottom, left:right], start - first, stop - start, plan.size)
        canvas = (self.config.height, self.config.width, self.config.channels)
        if self.config.fit == PAD:
            background = tf.constant(in_channels(self.config.background, self.config.color), tf.float32)
            above, beside = tf.unstack(tf.cast(plan.offset, tf.int32))
            padded = tf.image.pad_to_bounding_box(resized - background, above, beside, *canvas[:2])
            resized = padded + background
        return tf.cast(tf.ensure_shape(resized, canvas), tf.uint8)


def _resize(pixels: tf.Tensor, start: tf.Tensor, sides: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """The part of ``pixels``, float32, of these ``sides`` from ``start`` on, at ``size``: whole levels, float32.

    The rule and its roundings are those of `etl.images.resize`. OpenCV weighs pixels in fixed point, so that a level in
    ten is another by one.
    """
    pieces = tf.math.ceil(sides / tf.cast(size, tf.float64))  # of each new pixel; one if it grows
    between = size * tf.cast(pieces, tf.int64)
    scale = tf.cast(between, tf.float64) / sides
    resized = tf.raw_ops.ScaleAndTranslate(
        images=pixels[None],
        size=tf.cast(between, tf.int32),
        scale=tf.cast(scale, tf.float32),
        translation=tf.cast(-start * scale, tf.float32),
        kernel_type="triangle",
        antialias=False,
    )[0]
    rows, columns = tf.unstack(tf.stack([size, tf.cast(pieces, tf.int64)], axis=1))
    blocks = tf.reshape(_rounded(resized), tf.concat([rows, columns, tf.shape(pixels, tf.int64)[2:]], axis=0))
    return _rounded(tf.reduce_mean(blocks, axis=(1, 3)))


def _rounded(levels: tf.Tensor) -> tf.Tensor:
    return tf.floor(levels + 0.5)


def _decode_png(data: tf.Tensor) -> tf.Tensor:
    """Red, green, blue and alpha, int32: without an alpha, TensorFlow fills it with a sample's largest value."""
    pixels = tf.cast(tf.io.decode_png(data, channels=4), tf.int32)
    largest = tf.bitwise.left_shift(1, tf.minimum(_octet(data, _PNG_DEPTH), 8)) - 1
    alpha = tf.where(pixels[..., 3:] != largest, pixels[..., 3:], 255)
    return tf.concat([pixels[..., :3], alpha], axis=-1)


def _octet(data: tf.Tensor, position: int) -> tf.Tensor:
    return tf.cast(tf.io.decode_raw(tf.strings.substr(data, position, 1), tf.uint8)[0], tf.int32)


def _begins_with(data: tf.Tensor, signature: bytes) -> tf.Tensor:
    return tf.strings.substr(data, 0, len(signature)) == signature


def _swapped(sides: tf.Tensor, swap: tf.Tensor) -> tf.Tensor:
    return tf.where(swap, tf.reverse(sides, [0]), sides)


def _rounded_ratio(value: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
    """To the nearest whole number, halves up."""
    return (2 * value + divisor) // (2 * divisor)

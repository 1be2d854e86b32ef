"""The way up of a JPEG file, found and made by TensorFlow's own ops: EXIF's orientation 1 to 8.

Segments are those of ITU-T T.81, B.1.1; EXIF is CIPA DC-008: 4.5.4 (APP1), 4.6.2 (the TIFF structure), 4.6.5.1.6.
"""

import tensorflow as tf

from etl.images.decode import TURNED, mirrored
from etl.images.header import ORIENTATION

_EXIF = tuple(b"Exif\0\0")
_MARKER, _APP1, _SOI, _SOS = 0xFF, 0xE1, 0xD8, 0xDA
_LITTLE, _BIG = tuple(b"II"), tuple(b"MM")
_ENTRY_BYTES = 12
_SHORT, _LONG = 3, 4  # types of a value
_MIRRORED = [mirrored(orientation) for orientation in range(9)]
MAX_SEGMENTS = 1_000  # before the first scan, of a picture that is one


def read_orientation(data: tf.Tensor) -> tf.Tensor:
    """The orientation of a JPEG file by its EXIF, int64 from 1 to 8: 1 if it has none, or none that can be read."""
    octets = tf.concat([tf.io.decode_raw(data, tf.uint8), tf.zeros(1, tf.uint8)], axis=0)  # 0 is what lies beyond
    segment = _find_exif(octets)
    begin = segment + 4 + len(_EXIF)
    order = _take(octets, begin, 2)
    is_big = tf.reduce_all(order == _BIG)
    directory = begin + _number(_take(octets, begin + 4, 4), is_big)
    count = _number(_take(octets, directory, 2), is_big)
    starts = directory + 2 + _ENTRY_BYTES * tf.range(count)
    entries = _take(octets, starts[:, None], _ENTRY_BYTES)
    tags, kinds, numbers = (_number(entries[:, begin:end], is_big) for begin, end in ((0, 2), (2, 4), (4, 8)))
    shorts, longs = (_number(entries[:, 8 : 8 + width], is_big) for width in (2, 4))
    is_short, is_long = (kinds == _SHORT) & (numbers >= 1) & (numbers <= 2), (kinds == _LONG) & (numbers == 1)
    recorded = tf.boolean_mask(tf.where(is_short, shorts, longs), (tags == ORIENTATION) & (is_short | is_long))
    first = tf.concat([recorded, tf.ones(1, tf.int64)], axis=0)[0]  # of several, as Pillow 13 has it
    is_known = (segment >= 0) & (is_big | tf.reduce_all(order == _LITTLE)) & (first >= 1) & (first <= 8)
    return tf.where(is_known, first, 1)


def is_turned(orientation: tf.Tensor) -> tf.Tensor:
    """True if rows are stored as columns."""
    return orientation >= TURNED


def is_mirrored(orientation: tf.Tensor) -> tf.Tensor:
    """True if rows, and columns, of the upright picture are not in the order that they are stored in: bool, (2,)."""
    return tf.gather(tf.constant(_MIRRORED), orientation)


def make_upright(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Pixels of shape (height, width, channels), turned and mirrored as ``orientation`` asks."""
    pixels = tf.cond(is_turned(orientation), lambda: tf.transpose(pixels, (1, 0, 2)), lambda: pixels)
    rows, columns = tf.unstack(is_mirrored(orientation))
    pixels = tf.cond(rows, lambda: tf.reverse(pixels, [0]), lambda: pixels)
    return tf.cond(columns, lambda: tf.reverse(pixels, [1]), lambda: pixels)


def _find_exif(octets: tf.Tensor) -> tf.Tensor:
    """Where the first EXIF segment begins, int64; -1 without one before the first scan."""

    def is_exif(position: tf.Tensor) -> tf.Tensor:
        marker = _take(octets, position, 2)[1]
        return (marker == _APP1) & tf.reduce_all(_take(octets, position + 4, len(_EXIF)) == _EXIF)

    def goes_on(position: tf.Tensor) -> tf.Tensor:
        first, marker = tf.unstack(_take(octets, position, 2))
        return (first == _MARKER) & (marker != _SOS) & ~is_exif(position)

    def step(position: tf.Tensor) -> list[tf.Tensor]:
        _, marker, high, low = tf.unstack(_take(octets, position, 4))
        length = tf.where(marker != _SOI, 256 * high + low, 0)
        return [position + tf.where(marker != _MARKER, 2 + length, 1)]  # a segment may begin with any number of FF

    position = tf.while_loop(goes_on, step, [tf.constant(0, tf.int64)], maximum_iterations=MAX_SEGMENTS)[0]
    return tf.where(is_exif(position), position, -1)


def _take(octets: tf.Tensor, start: tf.Tensor, number: int) -> tf.Tensor:
    """So many octets from ``start`` on, as int64."""
    last = tf.size(octets, tf.int64) - 1
    return tf.cast(tf.gather(octets, tf.clip_by_value(start + tf.range(number, dtype=tf.int64), 0, last)), tf.int64)


def _number(octets: tf.Tensor, is_big: tf.Tensor) -> tf.Tensor:
    """The number that the last axis of ``octets`` is, of either byte order."""
    weights = tf.constant([256**place for place in range(octets.shape[-1])], tf.int64)
    return tf.reduce_sum(octets * tf.where(is_big, tf.reverse(weights, [0]), weights), axis=-1)

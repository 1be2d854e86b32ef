"""From a reader's batches of serialized examples to batches of pixels, through ``tf.data``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tensorflow as tf

from etl.example import ENCODED, KEY, LABEL
from etl.manifest import Manifest
from train.drawing import Floats, RecordBatch

PREFETCH_BATCHES = 4

_DECODERS: dict[str, Callable[..., tf.Tensor]] = {"JPEG": tf.io.decode_jpeg, "PNG": tf.io.decode_png}


@dataclass(frozen=True)
class PixelBatch:
    """``pixels`` are uint8 of shape (batch, height, width, channels), ``labels`` int64, ``weights`` float32 (0 for the
    repeats that fill a batch up) and ``keys`` string, each of shape (batch,)."""

    pixels: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor
    keys: tf.Tensor


def decode_ahead(batches: Iterator[RecordBatch], manifest: Manifest, batch: int, threads: int) -> Iterator[PixelBatch]:
    """A decoded batch for each of ``batches``, whose size is ``batch``; ``threads`` is the budget for decoding ahead.

    Raises what ``batches`` raises, as it was: ``tf.data`` would make a message of its own of it.
    """
    raised: list[Exception] = []

    def generate() -> Iterator[tuple[list[bytes], Floats]]:
        try:
            for each in batches:
                yield each.examples(), each.weights
        except Exception as error:
            raised.append(error)
            raise

    signature = (tf.TensorSpec((batch,), tf.string), tf.TensorSpec((batch,), tf.float32))
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    dataset = dataset.map(_decoder(manifest, batch), num_parallel_calls=threads, deterministic=True)
    try:
        for tensors in dataset.prefetch(PREFETCH_BATCHES).with_options(options):
            yield PixelBatch(*tensors)
    except tf.errors.OpError:
        if raised:
            raise raised[0] from None
        raise


def _decoder(manifest: Manifest, batch: int) -> Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, ...]]:
    shape = (manifest.height, manifest.width, manifest.channels)
    features = {
        ENCODED: tf.io.FixedLenFeature((), tf.string),
        LABEL: tf.io.FixedLenFeature((), tf.int64),
        KEY: tf.io.FixedLenFeature((), tf.string),
    }

    def decode_pixels(encoded: tf.Tensor) -> tf.Tensor:
        if manifest.format not in _DECODERS:
            return tf.io.decode_raw(encoded, tf.uint8)
        decoder = _DECODERS[manifest.format]
        return tf.map_fn(lambda image: decoder(image, channels=shape[2]), encoded, fn_output_signature=tf.uint8)

    def decode(serialized: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        parsed = tf.io.parse_example(serialized, features)
        pixels = tf.reshape(decode_pixels(parsed[ENCODED]), (batch, *shape))
        return pixels, parsed[LABEL], weights, parsed[KEY]

    return tf.autograph.experimental.do_not_convert(decode)  # nothing to convert, and it leaves files in $TMPDIR

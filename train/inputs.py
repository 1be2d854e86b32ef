"""From a reader's batches of serialized examples to batches of pixels, in ``tf.data``."""

from collections.abc import Callable, Iterator

import tensorflow as tf

from etl.example import ENCODED, KEY, LABEL
from etl.manifest import Manifest
from train.reader import Batch

PREFETCH_BATCHES = 4

_DECODERS: dict[str, Callable[..., tf.Tensor]] = {"JPEG": tf.io.decode_jpeg, "PNG": tf.io.decode_png}


def make_dataset(
    batches: Callable[[], Iterator[Batch]], manifest: Manifest, batch: int, threads: int
) -> tf.data.Dataset:
    """A dataset of (pixels, labels, weights, keys), one element for each batch of ``batches``.

    Pixels are uint8 of shape (batch, height, width, channels), labels int64, weights float32 (0 for the repeats that
    fill a batch up) and keys string, each of shape (batch,). ``threads`` is the budget for decoding.
    """

    def generate() -> Iterator[tuple[list[bytes], list[float]]]:
        for each in batches():
            yield each.examples, [1.0] * each.real + [0.0] * (batch - each.real)

    signature = (tf.TensorSpec((batch,), tf.string), tf.TensorSpec((batch,), tf.float32))
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    dataset = dataset.map(_decoder(manifest, batch), num_parallel_calls=threads, deterministic=True)
    return dataset.prefetch(PREFETCH_BATCHES).with_options(options)


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

    return decode

"""TensorFlow's own readers, as `benchmarks/reader.py` measures them at their documented settings.

Imports none of the project's packages: `tensorflow_io` has an environment with the TensorFlow that it was built for.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lib.ways.reader_job import Job


def tfrecords(job: Job) -> int:
    """`TFRecordDataset` into batches of serialized examples; without an order, which is fastest."""
    dataset = tf.data.TFRecordDataset(job.all_files, buffer_size=job.buffer_bytes, num_parallel_reads=job.at_once)
    return count(_fast(dataset.batch(job.batch).prefetch(tf.data.AUTOTUNE)))


def tensorflow_io(job: Job) -> int:
    """The same on hdfs:// URIs."""
    import tensorflow_io  # noqa: F401 - adds hdfs:// to TensorFlow

    return tfrecords(job)


def recipe(job: Job) -> int:
    """Pictures of ``side`` pixels by the recipe of TensorFlow's guides: interleave, map, batch, all on AUTOTUNE."""
    features = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64),
    }

    def decode(example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(example, features)
        picture = tf.image.resize(tf.io.decode_jpeg(parsed["image/encoded"], channels=3), (job.side, job.side))
        return tf.cast(picture, tf.uint8), parsed["image/class/label"]

    dataset = tf.data.Dataset.from_tensor_slices(job.all_files).interleave(
        lambda file: tf.data.TFRecordDataset(file, buffer_size=job.buffer_bytes),
        cycle_length=job.at_once,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return count(_fast(dataset.batch(job.batch).prefetch(tf.data.AUTOTUNE)))


def _fast(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def count(batches: Iterable[Any]) -> int:
    """How many examples are in these batches of tensors or tuples of tensors."""
    return sum(int((batch[0] if isinstance(batch, tuple) else batch).shape[0]) for batch in batches)

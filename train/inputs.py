"""From a reader's batches of serialized examples to ``tf.data``, and on to batches of pixels."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import tensorflow as tf

from train.decoding import Decoder
from train.drawing import RecordBatch
from train.records_op import to_tensor

QUEUED_BATCHES = 2  # of serialized examples, beside the one that is being made and the one that is being used
DECODED_BATCHES = 2
STOP_TIMEOUT_S = 5.0

# for functions of tf.data: they hold nothing to convert, and to look for it leaves files in $TMPDIR
as_it_is = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class PixelBatch:
    """``pixels`` are of shape (batch, height, width, channels), ``labels`` int64, ``weights`` float32 (0 for the
    repeats that fill a batch up) and ``keys`` string, each of shape (batch,)."""

    pixels: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor
    keys: tf.Tensor


@contextmanager
def serialized(batches: Iterator[RecordBatch], steps: int, batch: int) -> Iterator[tf.data.Dataset]:
    """A dataset, to be gone through once, of the ``steps`` batches of ``batch`` records that ``batches`` gives.

    Its elements are serialized examples (string), their numbers in the split (int64) and their weights (float32), each
    of shape (batch,). At most `QUEUED_BATCHES` of them are read ahead.

    Within the block, what ``batches`` raises is raised as it was: ``tf.data`` makes a message of its own of it.
    """
    feed = _Feed(batches, batch)
    try:
        # Python feeds a queue, and TensorFlow takes from it without Python: half the time of a tf.py_function
        dataset = tf.data.Dataset.range(steps).map(as_it_is(lambda _: feed.queue.dequeue()))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # or it reads ahead as far as it likes
        yield dataset.with_options(options)
    except tf.errors.OpError:
        if feed.raised is not None:
            raise feed.raised from None
        raise
    finally:
        feed.stop()
        gc.collect()  # a dataset's graph is a cycle of objects, and TensorFlow keeps memory for it until it is gone


class _Feed:
    """A thread that takes batches one by one and puts their records, as tensors, into ``queue``."""

    def __init__(self, batches: Iterator[RecordBatch], batch: int) -> None:
        with tf.device("/CPU:0"):
            self.queue = tf.queue.FIFOQueue(QUEUED_BATCHES, [tf.string, tf.int64, tf.float32], [(batch,)] * 3)
        self.raised: Exception | None = None
        self._batches = batches
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, whatever it waits for; a read that hangs is left to itself after a while."""
        if self._thread.is_alive():
            self._close(cancel_pending_enqueues=True)
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            with tf.device("/CPU:0"):
                for each in self._batches:
                    components = [to_tensor(each), each.numbers, each.weights]
                    del each  # so that the reader has its memory back, however long the queue is full
                    # the method of the queue does the same, in three times the time
                    tf.raw_ops.QueueEnqueueV2(handle=self.queue.queue_ref, components=components)
                    del components  # or they would lie here for as long as the next ones take
        except tf.errors.CancelledError:  # by stop
            pass
        except Exception as error:
            self.raised = error
        finally:
            self._close()
            if hasattr(self._batches, "close"):  # a generator lets go of files and threads here, not whenever
                self._batches.close()

    def _close(self, cancel_pending_enqueues: bool = False) -> None:
        with suppress(tf.errors.CancelledError):  # it is closed, by the other thread
            if not self.queue.is_closed():
                self.queue.close(cancel_pending_enqueues)


def decode_ahead(
    batches: Iterator[RecordBatch], steps: int, batch: int, decoder: Decoder, threads: int
) -> Iterator[PixelBatch]:
    """A decoded batch for each of the ``steps`` ones of ``batches``; ``threads`` is the budget for decoding ahead.

    Raises what ``batches`` raises, as it was.
    """
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    with serialized(batches, steps, batch) as dataset:
        records = dataset.map(as_it_is(decoder.parse)).unbatch()
        decoded = records.map(as_it_is(decoder.decode), num_parallel_calls=threads, deterministic=True)
        batched = decoded.batch(batch, drop_remainder=True).prefetch(DECODED_BATCHES)
        for tensors in batched.with_options(options):
            yield PixelBatch(*tensors)

"""From a reader's batches of serialized examples to ``tf.data``, and on to batches of pixels."""

import ctypes
import functools
import gc
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from train.reader.batches import RecordBatch
from train.tf_backend.decode import Decoder
from train.tf_backend.records_op import to_tensor

QUEUED_BATCHES = 2  # of serialized examples, beside the one that is being made and the one that is being used
DECODED_BATCHES = 2
STOP_TIMEOUT_S = 5.0

# for functions of tf.data: they hold nothing to convert, and to look for it leaves files in $TMPDIR
without_autograph = tf.autograph.experimental.do_not_convert

Elements = Generator[tuple[tf.Tensor, ...], None, None]
Preparation = Callable[[tf.data.Dataset], tf.data.Dataset]


def _without_seed(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(without_autograph(lambda examples, numbers, weights, _: (examples, numbers, weights)))


class Feed:
    """A dataset that batches of ``batch`` records are fed to, epoch after epoch.

    Its elements are serialized examples (string), their numbers in the split (int64) and their weights (float32), each
    of shape (batch,), and the seed of the epoch (int64 scalar); or what ``prepare`` makes of such a dataset. At most
    `QUEUED_BATCHES` of them are read ahead.

    It is built once for all epochs: TensorFlow takes up to a quarter of a second for it, and memory that is slow to
    come back. So is the thread that feeds it, for malloc keeps memory for each thread that ever took much.
    """

    def __init__(self, batch: int, prepare: Preparation = _without_seed) -> None:
        self._batch = batch
        self._prepare = prepare
        self._built: tuple[tf.queue.FIFOQueue, tf.data.Dataset] | None = None
        self._feeding: _Feeding | None = None  # of the last epoch
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=_run_all, args=[self._work], name="feed", daemon=True).start()
        weakref.finalize(self, self._work.put, None).atexit = False
        keep_freed_memory()

    def epoch(self, batches: Iterator[RecordBatch], seed: int = 0) -> Elements:
        """The dataset's elements for the records that ``batches`` gives.

        Raises what ``batches`` raises, as it was: ``tf.data`` makes a message of its own of it.
        """
        self._built = self._built or self._build()
        fed, dataset = self._built
        self._feeding = feeding = _Feeding(fed, batches, seed)
        self._work.put(feeding.run)
        exhausted = False
        try:
            yield from dataset
            exhausted = True
        except tf.errors.OpError:
            if feeding.raised is not None:
                raise feeding.raised from None
            raise
        finally:
            feeding.stop(exhausted)
            if not exhausted:  # the queue has what is no longer needed, or is closed
                self._built = None
                del fed, dataset
                gc.collect()  # a dataset's graph is a cycle of objects

    def cancel(self) -> None:
        """Have what another thread waits for in this epoch fail, however long its reader hangs."""
        if self._feeding is not None:
            self._feeding.cancel()

    def _build(self) -> tuple[tf.queue.FIFOQueue, tf.data.Dataset]:
        # Python feeds a queue, and TensorFlow takes from it without Python: half the time of a tf.py_function
        with tf.device("/CPU:0"):
            fed = tf.queue.FIFOQueue(QUEUED_BATCHES, [tf.string, tf.int64, tf.float32, tf.int64])
        dataset = tf.data.Dataset.counter().map(without_autograph(lambda _: fed.dequeue()))
        dataset = dataset.take_while(without_autograph(lambda examples, *_: tf.size(examples) > 0))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # or it reads ahead as far as it likes
        options.autotune.enabled = False  # there is nothing to tune, and to end its thread may take a second
        return fed, self._prepare(dataset.map(without_autograph(_shaped(self._batch)))).with_options(options)


def _shaped(batch: int) -> Callable[..., tuple[tf.Tensor, ...]]:
    """A function that gives tensors of a queue their shapes; without the feed, which would be a cycle of objects."""

    def shape(*element: tf.Tensor) -> tuple[tf.Tensor, ...]:
        *columns, seed = element
        return *(tf.ensure_shape(column, (batch,)) for column in columns), tf.ensure_shape(seed, ())

    return shape


def _run_all(work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    # In a daemon thread, which waits for the next epoch as long as the process lives
    while (each := work.get()) is not None:
        each()
        del each


class _Feeding:
    """Takes batches one by one and puts their records, as tensors, into the queue ``fed``; at the end an empty one."""

    def __init__(self, fed: tf.queue.FIFOQueue, batches: Iterator[RecordBatch], seed: int) -> None:
        self.raised: Exception | None = None
        self._fed = fed
        self._batches = batches
        self._seed = np.int64(seed)
        self._over = threading.Event()

    def run(self) -> None:
        """Until the batches end, one of them fails, or `stop` is called by another thread."""
        try:
            with tf.device("/CPU:0"):
                for each in self._batches:
                    components = [to_tensor(each), each.numbers, each.weights]
                    del each  # so that the reader has its memory back, however long the queue is full
                    self._put(components)
                    del components  # or they would lie here for as long as the next ones take
                self._put([tf.constant([], tf.string), np.empty(0, np.int64), np.empty(0, np.float32)])
        except tf.errors.CancelledError:  # by stop
            pass
        except Exception as error:
            self.raised = error
            self._close()
        finally:
            if hasattr(self._batches, "close"):  # a generator lets go of files and threads here, not whenever
                self._batches.close()
            self._over.set()

    def stop(self, exhausted: bool) -> None:
        """End `run`, whatever it waits for; a read that hangs is left to itself after a while."""
        if not exhausted:
            self.cancel()
        self._over.wait(STOP_TIMEOUT_S)

    def cancel(self) -> None:
        """End `run`, and make each wait for what it feeds fail."""
        self._close(cancel_pending_enqueues=True)

    def _put(self, components: list[object]) -> None:
        # the method of the queue does the same, in three times the time
        tf.raw_ops.QueueEnqueueV2(handle=self._fed.queue_ref, components=[*components, self._seed])

    def _close(self, cancel_pending_enqueues: bool = False) -> None:
        with suppress(tf.errors.CancelledError):  # it is closed, by the other thread
            if not self._fed.is_closed():
                self._fed.close(cancel_pending_enqueues)


@dataclass(frozen=True)
class PixelBatch:
    """``pixels`` are of shape (batch, height, width, channels), ``labels`` int64, ``weights`` float32 (0 for the
    padding that fills a batch up) and ``keys`` string, each of shape (batch,)."""

    pixels: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor
    keys: tf.Tensor

    @property
    def real_keys(self) -> Sequence[bytes]:
        """Those of the examples that are not padding."""
        return self.keys[self.weights > 0].numpy().tolist()


PixelBatches = Generator[PixelBatch, None, None]


class PixelFeed:
    """Decodes batches of ``batch`` records ahead, epoch after epoch, on as many ``threads``.

    Pixels of the next batch are copied to ``device``, if one is given, while a batch is used. All else stays on the
    CPU, where it is counted.
    """

    def __init__(self, decoder: Decoder, batch: int, threads: int, device: str = "") -> None:
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        options.threading.max_intra_op_parallelism = 1

        def prepare(dataset: tf.data.Dataset) -> tf.data.Dataset:
            records = dataset.map(without_autograph(decoder.parse)).unbatch()
            decoded = records.map(without_autograph(decoder.decode), num_parallel_calls=threads, deterministic=True)
            return decoded.batch(batch, drop_remainder=True).prefetch(DECODED_BATCHES).with_options(options)

        self._feed = Feed(batch, prepare)
        self._device = device

    def epoch(self, batches: Iterator[RecordBatch], seed: int = 0) -> PixelBatches:
        """A decoded batch for each one of ``batches``, augmented by ``seed``. Raises what ``batches`` raises."""
        decoded = (PixelBatch(*tensors) for tensors in self._feed.epoch(batches, seed))
        return copied_ahead(decoded, self._device, self._feed.cancel) if self._device else decoded


def copied_ahead(batches: PixelBatches, device: str, cancel: Callable[[], None]) -> PixelBatches:
    """These batches; a thread copies the pixels of the next one to ``device``, which may wait for the device.

    If no more are wanted, ``cancel`` ends its waiting for the next one.
    """

    def copy_next() -> PixelBatch | None:
        if (batch := next(batches, None)) is None:
            return None
        with tf.device(device):
            return replace(batch, pixels=tf.identity(batch.pixels))

    with closing(batches), ThreadPoolExecutor(1, "copy") as thread:
        exhausted = False
        try:
            copying = thread.submit(copy_next)
            while (batch := copying.result()) is not None:  # the monitor ends a rank that waits here for too long
                copying = thread.submit(copy_next)
                yield batch
            exhausted = True
        finally:
            if not exhausted:
                cancel()


MALLOC_TRIM_THRESHOLD, MALLOC_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 64 << 20
MAPPED_BYTES = 32 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Have malloc keep up to `KEPT_BYTES` of what is freed, for the next batch's strings: to give pages back to the
    kernel and to take them again is more work than to copy the records.

    These are the values at which glibc ends by itself if large pieces come and go (mallopt(3)); without it nothing
    is done.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MALLOC_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(MALLOC_MMAP_THRESHOLD, MAPPED_BYTES)

"""From batches in memory to tensors: the native op, its fallback, order, errors, and what is let go of."""

import ctypes
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from etl.errors import DataError
from tests.lib.commands import PATIENCE_S
from train.reader.batches import RecordBatch
from train.reader.memory import Buffer
from train.tf_backend import feed as feed_module
from train.tf_backend import records_op
from train.tf_backend.decode import Decoder
from train.tf_backend.feed import QUEUED_BATCHES, Feed, PixelBatch, PixelFeed

# around 23 bytes TensorFlow's strings begin to live outside of themselves
SIZES = (0, 1, 22, 23, 24, 1000, 200_000)


def batch_of(records: Sequence[bytes], first: int = 0) -> RecordBatch:
    sizes = np.array([len(record) for record in records], np.int64)
    buffer = Buffer(int(sizes.sum()))
    buffer.view[:] = b"".join(records)
    addresses = buffer.address + np.cumsum(sizes) - sizes
    numbers = np.arange(first, first + len(records), dtype=np.int64)
    return RecordBatch(addresses, sizes, numbers, np.ones(len(records), np.float32), (buffer,))


def batches_of(number: int, size: int = 4) -> Iterator[RecordBatch]:
    for each in range(number):
        yield batch_of([f"record {each * size + place}".encode() * 50 for place in range(size)], each * size)


def test_the_native_op_is_at_work_here() -> None:
    assert records_op.why_not_native() is None


def test_the_native_op_and_its_fallback_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    records = [random.bytes(size) for size in SIZES]
    batch = batch_of(records)
    native = records_op.to_tensor(batch)
    monkeypatch.setattr(records_op, "_load", lambda: (None, "not built"))
    fallback = records_op.to_tensor(batch)
    assert native.dtype == fallback.dtype == tf.string
    assert native.numpy().tolist() == fallback.numpy().tolist() == records
    assert records_op.to_tensor(batch_of([])).shape == (0,)


def test_a_tensor_outlives_its_batch() -> None:
    batch = batch_of([b"abc" * 100])
    tensor = records_op.to_tensor(batch)
    ctypes.memset(int(batch.addresses[0]), 0, 300)
    assert tensor.numpy().tolist() == [b"abc" * 100]


def test_the_native_op_refuses_what_makes_no_sense() -> None:
    native, _ = records_op._load()
    assert native is not None
    for addresses, sizes in (([1, 2], [1]), ([[1]], [[1]]), ([0], [-1])):
        with pytest.raises(tf.errors.InvalidArgumentError):
            native.ringslice_records(addresses=np.array(addresses, np.int64), sizes=np.array(sizes, np.int64))


def test_a_library_that_is_missing_or_broken_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "records_op.so"
    monkeypatch.setattr(records_op, "installed_library", lambda: library)
    load = records_op._load.__wrapped__
    assert load() == (None, "not built")
    library.write_bytes(b"no library")
    native, reason = load()
    assert native is None
    assert str(reason).startswith("not usable (")


def test_batches_come_whole_and_in_order() -> None:
    feed = Feed(4)
    for epoch in range(2):  # into the same dataset
        found = list(feed.epoch(batches_of(9), epoch))
        for (records, numbers, weights), wanted in zip(found, batches_of(9), strict=True):
            assert [each.shape for each in (records, numbers, weights)] == [(4,)] * 3
            assert records.numpy().tolist() == wanted.examples()
            assert numbers.numpy().tolist() == wanted.numbers.tolist()
            assert weights.numpy().tolist() == [1] * 4


def test_a_dataset_is_prepared_once_and_gets_the_seed_of_each_epoch() -> None:
    prepared = []

    def prepare(dataset: tf.data.Dataset) -> tf.data.Dataset:
        prepared.append(dataset.element_spec)
        return dataset

    feed = Feed(4, prepare)
    seeds = [[int(seed) for *_, seed in feed.epoch(batches_of(3), seed)] for seed in (5, -(2**63))]
    assert seeds == [[5] * 3, [-(2**63)] * 3]
    assert [[each.shape for each in spec] for spec in prepared] == [[(4,)] * 3 + [()]]


def test_errors_of_tensorflow_itself_are_left_alone() -> None:
    failing = tf.function(lambda *_: tf.debugging.assert_equal(1, 2, "it has failed"), autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="it has failed"):
        list(Feed(4, lambda dataset: dataset.map(failing)).epoch(batches_of(3)))


def test_a_reader_is_closed_where_iteration_ends_early_and_the_next_epoch_is_whole() -> None:
    closed = threading.Event()

    def batches() -> Iterator[RecordBatch]:
        try:
            yield from batches_of(1000)
        finally:
            closed.set()

    feed = Feed(4)
    with closing(feed.epoch(batches())) as elements:
        next(elements)
    assert closed.is_set()
    assert [numbers[0].numpy() for _, numbers, _ in feed.epoch(batches_of(3))] == [0, 4, 8]


class Numbers:
    """Decodes nothing: a picture is its number."""

    def parse(self, examples: tf.Tensor, numbers: tf.Tensor, weights: tf.Tensor, seed: tf.Tensor) -> Any:
        del seed
        return examples, numbers, weights

    def decode(self, example: tf.Tensor, number: tf.Tensor, weight: tf.Tensor) -> Any:
        return tf.cast(tf.fill((1, 1, 1), number), tf.uint8), number, weight, example


@pytest.fixture(params=["", "/CPU:0"])
def feed(request: pytest.FixtureRequest) -> PixelFeed:
    """It decodes there, or copies there ahead, as to a GPU."""
    return PixelFeed(cast(Decoder, Numbers()), 4, threads=1, device=request.param)


def first_labels(pictures: Iterable[PixelBatch]) -> list[int]:
    return [int(each.labels[0]) for each in pictures]


def test_what_is_raised_comes_out_as_it_was_after_the_batches_before(feed: PixelFeed) -> None:
    error, taken = DataError("slice 7 is damaged"), list[PixelBatch]()

    def batches() -> Iterator[RecordBatch]:
        yield from batches_of(3)
        raise error

    with pytest.raises(DataError) as raised:
        taken.extend(feed.epoch(batches()))
    assert raised.value is error
    assert first_labels(taken) == [0, 4, 8]
    assert len(list(feed.epoch(batches_of(5)))) == 5


def test_an_epoch_ends_early_while_its_reader_hangs(feed: PixelFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "STOP_TIMEOUT_S", 0.5)
    goes_on = threading.Event()

    def batches() -> Iterator[RecordBatch]:
        yield from batches_of(2)
        goes_on.wait()
        yield from batches_of(2)

    pictures = feed.epoch(batches())
    assert first_labels(islice(pictures, 2)) == [0, 4]
    pictures.close()
    goes_on.set()
    assert first_labels(feed.epoch(batches_of(3))) == [0, 4, 8]
    assert not [each for each in threading.enumerate() if each.name.startswith("copy")]


def test_a_feed_that_is_gone_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    feed = Feed(4)
    list(feed.epoch(batches_of(3)))
    (thread,) = (each for each in threading.enumerate() if each.name == "feed" and each not in before)
    del feed
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_little_is_read_ahead_and_nothing_kept() -> None:
    made: list[weakref.ref[RecordBatch]] = []

    def batches() -> Iterator[RecordBatch]:
        for each in batches_of(50):
            made.append(weakref.ref(each))
            yield each
            del each

    for taken, _ in enumerate(Feed(4).epoch(batches()), start=1):
        assert len(made) <= taken + QUEUED_BATCHES + 2
        assert sum(each() is not None for each in made) <= 2
    assert not any(each() is not None for each in made)

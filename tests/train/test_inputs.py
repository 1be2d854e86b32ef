"""From batches in memory to tensors: the native op, its fallback, order, errors, and what is let go of."""

import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from etl.errors import DataError
from train import records_op
from train.buffers import Buffer
from train.drawing import RecordBatch
from train.inputs import QUEUED_BATCHES, serialized

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


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_op, "_load", lambda: (None, "not built"))


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


@pytest.mark.parametrize("way", ["native", "fallback"])
def test_batches_come_whole_and_in_order(way: str, request: pytest.FixtureRequest) -> None:
    if way == "fallback":
        request.getfixturevalue("without_native")
    with serialized(batches_of(9), steps=9, batch=4) as dataset:
        found = list(dataset)
    assert [each.shape for each in dataset.element_spec] == [(4,)] * 3
    for (records, numbers, weights), wanted in zip(found, batches_of(9), strict=True):
        assert records.numpy().tolist() == wanted.examples()
        assert numbers.numpy().tolist() == wanted.numbers.tolist()
        assert weights.numpy().tolist() == [1] * 4


def test_what_is_raised_comes_out_as_it_was_after_the_batches_before() -> None:
    error = DataError("slice 7 is damaged")

    def batches() -> Iterator[RecordBatch]:
        yield from batches_of(3)
        raise error

    taken = 0
    with pytest.raises(DataError) as raised, serialized(batches(), steps=9, batch=4) as dataset:
        for _ in dataset:
            taken += 1
    assert raised.value is error
    assert taken == 3


def test_errors_of_the_block_itself_are_left_alone() -> None:
    with pytest.raises(tf.errors.UnknownError), serialized(batches_of(3), steps=3, batch=4):
        raise tf.errors.UnknownError(None, None, "horovod has failed")


def test_a_reader_is_closed_where_iteration_ends_early() -> None:
    closed = threading.Event()

    def batches() -> Iterator[RecordBatch]:
        try:
            yield from batches_of(1000)
        finally:
            closed.set()

    with serialized(batches(), steps=1000, batch=4) as dataset:
        next(iter(dataset))
    assert closed.is_set()
    assert "feed" not in {thread.name for thread in threading.enumerate()}


def test_little_is_read_ahead_and_nothing_kept() -> None:
    made: list[weakref.ref[RecordBatch]] = []

    def batches() -> Iterator[RecordBatch]:
        for each in batches_of(50):
            made.append(weakref.ref(each))
            yield each
            del each

    with serialized(batches(), steps=50, batch=4) as dataset:
        for taken, _ in enumerate(dataset, start=1):
            assert len(made) <= taken + QUEUED_BATCHES + 2
            assert sum(each() is not None for each in made) <= 2
    assert not any(each() is not None for each in made)

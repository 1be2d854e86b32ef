import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from etl.errors import DataError
from etl.example import parse
from etl.manifest import Manifest
from etl.storage import open_place
from train.decoding import Decoder
from train.inputs import decode_ahead
from train.order import Steps
from train.reader import RecordBatch, SplitReader


def open_reader(folder: Path, split: str = "train") -> SplitReader:
    return SplitReader(open_place(str(folder)), read_manifest(folder), split)


def real(batch: RecordBatch) -> list[bytes]:
    return [example for example, weight in zip(batch.examples(), batch.weights, strict=True) if weight]


def read_manifest(folder: Path) -> Manifest:
    return Manifest.from_json(json.loads((folder / "manifest.json").read_text()))


@pytest.fixture
def slices(digits_root: Path) -> Path:
    return digits_root / "slices" / "default"


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 11])
def test_ranks_read_the_epoch_between_them(slices: Path, world_size: int) -> None:
    reader = open_reader(slices)
    steps = Steps(reader.total, world_size, 50)
    order = reader.order(seed=0, epoch=1)
    keys: list[str] = []
    for rank in range(world_size):
        batches = list(reader.batches(order, steps, rank))
        assert len(batches) == steps.number
        assert all(len(batch.examples()) == 50 for batch in batches)
        keys += [parse(example).key for batch in batches for example in real(batch)]
    rows = [line for path in (slices / "train").glob("*.idx") for line in path.read_text().splitlines()]
    assert len(keys) == len(set(keys)) == len(rows) == 1437


def test_what_is_left_of_an_epoch_is_read_on_by_other_ranks(slices: Path) -> None:
    reader = open_reader(slices)
    order = reader.order(seed=0, epoch=1)
    first = list(reader.batches(order, Steps(1000, 1, 100), 0, start=[(0, 1000)]))
    left = [(1000, order.total)]
    rest = [b for rank in range(3) for b in reader.batches(order, Steps(437, 3, 100), rank, start=left)]
    keys = [parse(example).key for batch in first + rest for example in real(batch)]
    assert len(keys) == len(set(keys)) == 1437
    assert list(reader.batches(order, Steps(0, 1, 100), 0, start=[])) == []


def test_a_rank_without_a_single_example_gets_repeats(slices: Path) -> None:
    reader = open_reader(slices, "test")
    order, steps = reader.order(0, 0), Steps(180, 200, 4)
    batches = [list(reader.batches(order, steps, rank)) for rank in range(200)]
    assert sum(len(real(batch)) for own in batches for batch in own) == 180
    assert min(len(real(own[0])) for own in batches) == 0
    assert all(parse(example) for own in batches for batch in own for example in batch.examples())
    assert {len(own) for own in batches} == {1}


def test_a_damaged_block_is_named(slices: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(slices, tmp_path / "slices")
    path = folder / "train" / "train-00003-of-00008.tfrecord"
    data = bytearray(path.read_bytes())
    data[1000] ^= 4
    path.write_bytes(bytes(data))
    reader = open_reader(folder)
    with pytest.raises(DataError, match=r"train-00003-of-00008\.tfrecord is damaged between offset 0 and \d+"):
        list(reader.batches(reader.order(0, 1), Steps(reader.total, 1, 100), 0))


def test_tables_that_do_not_fit_are_refused(slices: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(slices, tmp_path / "slices")
    shutil.copy(folder / "blocks.parquet", folder / "whole.parquet")
    shutil.copy(folder / "class_counts.parquet", folder / "blocks.parquet")
    with pytest.raises(DataError, match=r"blocks\.parquet"):
        open_reader(folder)
    shutil.copy(folder / "whole.parquet", folder / "blocks.parquet")
    (folder / "test" / "test-00000-of-00001.idx").write_text("0 1\n")
    reader = open_reader(folder, "test")
    with pytest.raises(DataError, match="does not list 180 records"):
        next(reader.batches(reader.order(0, 0), Steps(reader.total, 1, 10), 0))


def test_pixels_labels_weights_and_keys(slices: Path) -> None:
    reader, manifest = open_reader(slices, "test"), read_manifest(slices)
    order, steps = reader.order(0, 0), Steps(reader.total, 1, 50)
    found = list(decode_ahead(reader.batches(order, steps, 0), 4, 50, Decoder(manifest, (28, 28)), threads=1))
    examples = [example for batch in reader.batches(order, steps, 0) for example in batch.examples()]
    assert [batch.pixels.shape for batch in found] == [(50, 28, 28, 1)] * 4
    assert sum(float(tf.reduce_sum(batch.weights)) for batch in found) == 180
    for batch, start in zip(found, range(0, 200, 50), strict=True):
        for number, data in enumerate(examples[start : start + 50]):
            example = parse(data)
            assert (example.key.encode(), example.label) == (batch.keys[number].numpy(), batch.labels[number].numpy())
            assert np.array_equal(batch.pixels[number], tf.io.decode_png(example.encoded))


def test_what_the_reader_raises_comes_through_tensorflow_as_it_was(slices: Path) -> None:
    def batches() -> Iterator[RecordBatch]:
        reader = open_reader(slices, "test")
        yield next(reader.batches(reader.order(0, 0), Steps(180, 1, 50), 0))
        raise DataError("slice 7 is damaged")

    decoded = decode_ahead(batches(), 4, 50, Decoder(read_manifest(slices), (28, 28)), threads=1)
    with pytest.raises(DataError, match="slice 7 is damaged"):
        list(decoded)

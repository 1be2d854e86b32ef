import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from etl.errors import DataError
from etl.formats.example import parse
from etl.slices.manifest import Manifest
from etl.storage.place import open_place
from train.input.decode import Decoder
from train.input.feed import PixelFeed
from train.reader.batches import RecordBatch
from train.reader.config import Reading
from train.reader.intervals import Steps
from train.reader.reader import SplitReader

pytestmark = pytest.mark.integration


def open_reader(folder: Path, split: str = "train", reading: Reading | None = None) -> SplitReader:
    return SplitReader(open_place(str(folder)), read_manifest(folder), split, reading)


def keys_of(batches: Iterable[RecordBatch]) -> list[str]:
    """The keys of these batches' examples, repeats left out."""
    return [
        parse(example).key
        for batch in batches
        for example, weight in zip(batch.examples(), batch.weights, strict=True)
        if weight
    ]


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
        keys += keys_of(batches)
    rows = [line for path in (slices / "train").glob("*.idx") for line in path.read_text().splitlines()]
    assert len(keys) == len(set(keys)) == len(rows) == 1437


def test_what_is_left_of_an_epoch_is_read_on_by_other_ranks(slices: Path) -> None:
    reader = open_reader(slices)
    order = reader.order(seed=0, epoch=1)
    first = list(reader.batches(order, Steps(1000, 1, 100), 0, left=[(0, 1000)]))
    left = [(1000, order.total)]
    rest = [b for rank in range(3) for b in reader.batches(order, Steps(437, 3, 100), rank, left=left)]
    keys = keys_of(first + rest)
    assert len(keys) == len(set(keys)) == 1437
    assert list(reader.batches(order, Steps(0, 1, 100), 0, left=[])) == []


def test_a_rank_without_a_single_example_gets_repeats(slices: Path) -> None:
    reader = open_reader(slices, "test")
    order, steps = reader.order(0, 0), Steps(180, 200, 4)
    batches = [list(reader.batches(order, steps, rank)) for rank in range(200)]
    assert sum(batch.weights.sum() for own in batches for batch in own) == 180
    assert min(own[0].weights.sum() for own in batches) == 0
    assert all(parse(example) for own in batches for batch in own for example in batch.examples())
    assert {len(own) for own in batches} == {1}


def test_damage_is_named_or_skipped(slices: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(slices, tmp_path / "slices")
    path = folder / "train" / "train-00003-of-00008.tfrecord"
    data = bytearray(path.read_bytes())
    data[1000] ^= 4
    path.write_bytes(bytes(data))
    reader = open_reader(folder)
    with pytest.raises(
        DataError, match=r"train-00003-of-00008\.tfrecord is damaged at offset \d+: key '.*', record \d"
    ):
        list(reader.batches(reader.order(0, 1), Steps(reader.total, 1, 100), 0))
    reader = open_reader(folder, reading=Reading(on_damage="skip"))
    batches = list(reader.batches(reader.order(0, 1), Steps(reader.total, 1, 100), 0))
    assert [len(batch.examples()) for batch in batches] == [100] * 15
    assert sum(batch.skipped for batch in batches) == 1
    assert len(set(keys_of(batches))) == sum(batch.weights.sum() for batch in batches) == 1436
    reader = open_reader(folder, reading=Reading(on_damage="skip", skip_limit=0))
    with pytest.raises(DataError, match="one more than --skip-limit 0 allows"):
        list(reader.batches(reader.order(0, 1), Steps(reader.total, 1, 100), 0))


def test_tables_that_do_not_fit_are_refused(slices: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(slices, tmp_path / "slices")
    shutil.copy(folder / "blocks.parquet", folder / "whole.parquet")
    shutil.copy(folder / "class_counts.parquet", folder / "blocks.parquet")
    with pytest.raises(DataError, match=r"blocks\.parquet"):
        open_reader(folder).require()
    shutil.copy(folder / "whole.parquet", folder / "blocks.parquet")
    index = folder / "test" / "test-00000-of-00001.idx"
    whole = index.read_text()
    for wrong, message in (
        ("0 1\n", "does not list 180 records"),
        ("", "does not list 180 records"),
        ("0 one\n", "is no index of 'offset size' lines"),
        (whole.replace("\n", "0\n", 1), "does not fit blocks.parquet"),
        (shifted(whole), "the index of .* does not fit it"),
    ):
        index.write_text(wrong)
        reader = open_reader(folder, "test")
        with pytest.raises(DataError, match=message):
            next(reader.batches(reader.order(0, 0), Steps(reader.total, 1, 10), 0))


def shifted(index: str) -> str:
    """The same index, with the bound between its first two records moved by a byte."""
    first, second, rest = index.split("\n", 2)
    (start, size), (_, next_size) = first.split(), second.split()
    return f"{start} {int(size) + 1}\n{int(start) + int(size) + 1} {int(next_size) - 1}\n{rest}"


@pytest.mark.parametrize("device", ["", "/CPU:0"])  # decoded there, or copied there ahead, as to a GPU
def test_pixels_labels_weights_and_keys(slices: Path, device: str) -> None:
    reader, manifest = open_reader(slices, "test"), read_manifest(slices)
    order, steps = reader.order(0, 0), Steps(reader.total, 1, 50)
    feed = PixelFeed(Decoder(manifest, (28, 28)), 50, threads=1, device=device)
    found = list(feed.epoch(reader.batches(order, steps, 0)))
    examples = [example for batch in reader.batches(order, steps, 0) for example in batch.examples()]
    assert [batch.pixels.shape for batch in found] == [(50, 28, 28, 1)] * 4
    assert sum(float(tf.reduce_sum(batch.weights)) for batch in found) == 180
    for batch, start in zip(found, range(0, 200, 50), strict=True):
        for number, data in enumerate(examples[start : start + 50]):
            example = parse(data)
            assert (example.key.encode(), example.label) == (batch.keys[number].numpy(), batch.labels[number].numpy())
            assert np.array_equal(batch.pixels[number], tf.io.decode_png(example.encoded))


@pytest.mark.parametrize("device", ["", "/CPU:0"])
def test_what_the_reader_raises_comes_through_tensorflow_as_it_was(slices: Path, device: str) -> None:
    def batches() -> Iterator[RecordBatch]:
        reader = open_reader(slices, "test")
        yield next(reader.batches(reader.order(0, 0), Steps(180, 1, 50), 0))
        raise DataError("slice 7 is damaged")

    feed = PixelFeed(Decoder(read_manifest(slices), (28, 28)), 50, threads=1, device=device)
    with pytest.raises(DataError, match="slice 7 is damaged"):
        list(feed.epoch(batches()))


@pytest.mark.parametrize("device", ["", "/CPU:0"])
def test_an_epoch_that_is_left_early_does_not_disturb_the_next(slices: Path, device: str) -> None:
    reader = open_reader(slices, "test")
    feed = PixelFeed(Decoder(read_manifest(slices), (28, 28)), 10, threads=1, device=device)
    order, steps = reader.order(0, 0), Steps(reader.total, 1, 10)
    first = feed.epoch(reader.batches(order, steps, 0))
    begun = next(first)
    first.close()
    again = list(feed.epoch(reader.batches(order, steps, 0)))
    assert len(again) == steps.number
    assert np.array_equal(again[0].pixels, begun.pixels)

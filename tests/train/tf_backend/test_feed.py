"""From batches in memory to pictures: the native op, order, errors, decoding and augmentation."""

import ctypes
import dataclasses
import math
import threading
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from etl.errors import DataError
from tests.lib.commands import PATIENCE_S
from tests.lib.examples import EVERYTHING, HEIGHT, WIDTH, Pixels, batch_of, example, manifest_of, picture
from train.config.augmentation import CROP_ATTEMPTS, GRAY, Augmentation, Size, centre_window
from train.reader.batches import RecordBatch
from train.reader.order import epoch_seed
from train.tf_backend import feed as feed_module
from train.tf_backend import records_op
from train.tf_backend.augment import random_window, recolour_at_random
from train.tf_backend.decode import Decoder
from train.tf_backend.feed import QUEUED_BATCHES, Feed, PixelBatch, PixelFeed


def batches_of(number: int) -> Iterator[RecordBatch]:
    """Of four records each."""
    for first in range(0, 4 * number, 4):
        yield batch_of([f"record {first + place}".encode() * 50 for place in range(4)], first)


def test_the_native_op_and_its_fallback_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """And their tensors outlive the batch."""
    assert records_op.why_not_native() is None
    random = np.random.default_rng(0)
    # around 23 bytes TensorFlow's strings begin to live outside of themselves
    sizes = (0, 1, 22, 23, 24, 1000, 200_000)
    records = [random.bytes(size) for size in sizes]
    batch = batch_of(records)
    native = records_op.to_tensor(batch)
    monkeypatch.setattr(records_op, "_load", lambda: (None, "not built"))
    fallback = records_op.to_tensor(batch)
    ctypes.memset(int(batch.addresses[0]), 0, sum(sizes))
    assert native.dtype == fallback.dtype == tf.string
    assert native.numpy().tolist() == fallback.numpy().tolist() == records
    assert records_op.to_tensor(batch_of([])).shape == (0,)


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


def test_errors_of_tensorflow_itself_are_left_alone() -> None:
    failing = tf.function(lambda *_: tf.debugging.assert_equal(1, 2, "it has failed"), autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="it has failed"):
        list(Feed(4, lambda dataset: dataset.map(failing)).epoch(batches_of(3)))


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
    """Its reader is closed once it can be, and the next epoch is whole."""
    monkeypatch.setattr(feed_module, "STOP_TIMEOUT_S", 0.5)
    goes_on, closed, resumed = threading.Event(), threading.Event(), list[bool]()

    def batches() -> Iterator[RecordBatch]:
        try:
            yield from batches_of(2)
            resumed.append(goes_on.wait(PATIENCE_S))
            yield from batches_of(1000)
        finally:
            closed.set()

    pictures = feed.epoch(batches())
    assert first_labels(islice(pictures, 2)) == [0, 4]
    pictures.close()
    goes_on.set()
    assert closed.wait(PATIENCE_S), "the reader was not closed"
    assert resumed == [True], "the epoch ended only after its reader"
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


def decode(
    decoder: Decoder, numbers: list[int], *, batch: int = 5, format: str = "PNG", seed: int = 0
) -> list[PixelBatch]:
    def batches() -> Iterator[RecordBatch]:
        for start in range(0, len(numbers), batch):
            own = numbers[start : start + batch]
            made = batch_of([example(number, format, decoder.manifest.channels) for number in own])
            yield RecordBatch(made.addresses, made.sizes, np.array(own, np.int64), made.weights, made.buffers)

    return list(PixelFeed(decoder, batch, threads=2).epoch(batches(), seed))


def by_key(found: list[PixelBatch]) -> dict[bytes, Pixels]:
    return {key: pixels.numpy() for each in found for key, pixels in zip(each.keys.numpy(), each.pixels, strict=True)}


def test_a_picture_goes_by_its_number_and_not_by_batch_or_order() -> None:
    """And its label with it."""
    decoder = Decoder(manifest_of("PNG"), (24, 24), EVERYTHING)
    numbers = list(range(20))
    once = by_key(decode(decoder, numbers, seed=epoch_seed(3, 7)))
    batches = decode(decoder, numbers[::-1], batch=2, seed=epoch_seed(3, 7))
    assert [each.labels.numpy().tolist() for each in batches] == [[1, 0]] * 10
    again = by_key(batches)
    assert once.keys() == again.keys()
    assert all(np.array_equal(once[key], again[key]) for key in once)
    for seed in ((3, 8), (4, 7)):
        other = by_key(decode(decoder, numbers, seed=epoch_seed(*seed)))
        assert not any(np.array_equal(once[key], other[key]) for key in once)


@pytest.mark.parametrize(("shape", "least"), [((200, 300), 0.02), ((40, 400), 0.08), ((3, 4), 0.08)])
def test_windows_are_those_of_the_definition(shape: Size, least: float) -> None:
    """Torchvision's RandomResizedCrop with a scale of (``least``, 1), from the same random numbers."""
    augmentation, (height, width), fallbacks = Augmentation.of(["crop"], least), shape, 0
    draw = tf.function(lambda seed: random_window(augmentation, (*shape, 3), seed), autograph=False)
    for number in range(200):
        seed = tf.constant([0, number], tf.int64)
        found = draw(seed).numpy().tolist()
        *attempts, corner = tf.random.stateless_uniform((CROP_ATTEMPTS + 1, 2), seed).numpy().astype(float)
        for of_area, of_ratio in attempts:
            area = height * width * (least + (1 - least) * of_area)
            ratio = math.exp(math.log(3 / 4) + math.log(16 / 9) * of_ratio)
            tall, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < tall <= height and 0 < wide <= width:
                window = [int(corner[0] * (height - tall + 1)), int(corner[1] * (width - wide + 1)), tall, wide]
                break
        else:  # the largest one in the centre
            tall, wide = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
            window, fallbacks = [(height - tall) // 2, (width - wide) // 2, tall, wide], fallbacks + 1
        assert found == window
    assert fallbacks if max(shape) > 5 * min(shape) else fallbacks < 10


def test_half_of_the_pictures_are_flipped() -> None:
    decoder = Decoder(manifest_of("RAW"), (HEIGHT, WIDTH), Augmentation(flip=True))
    found = by_key(decode(decoder, list(range(300)), batch=100, format="RAW"))
    flipped = 0
    for key, pixels in found.items():
        mirrored = np.array_equal(pixels, picture(int(key))[:, ::-1])
        assert mirrored or np.array_equal(pixels, picture(int(key)))
        flipped += mirrored
    assert 120 <= flipped <= 180


@pytest.mark.parametrize("channels", [1, 3])
def test_colour_is_brightness_then_contrast_then_saturation(channels: int) -> None:
    pixels = tf.constant(picture(1, channels).astype(np.float32) / 4 + 90)  # far from both ends, so nothing is cut off
    gray = np.array(GRAY if channels == 3 else (1,), np.float32)
    factors = []
    for number in range(200):
        seed = tf.constant([5, number], tf.int64)
        found = recolour_at_random(pixels, seed).numpy()
        brightness, contrast, saturation = 1 + np.float32(0.4) * tf.random.stateless_uniform((3,), seed, -1, 1).numpy()
        wanted = pixels.numpy() * brightness
        wanted = contrast * wanted + (1 - contrast) * (wanted @ gray).mean()
        if channels == 3:
            wanted = saturation * wanted + (1 - saturation) * (wanted @ gray)[..., np.newaxis]
        assert np.allclose(found, wanted.clip(0, 255), atol=0.01)
        factors.append((brightness, contrast, saturation))
    low, high = np.min(factors, axis=0), np.max(factors, axis=0)
    assert low == pytest.approx([0.6, 0.6, 0.6], abs=0.02)
    assert high == pytest.approx([1.4, 1.4, 1.4], abs=0.02)


def test_what_is_shown_where_nothing_is_random() -> None:
    assert centre_window((256, 256), (224, 224)) == (16, 16, 224, 224)  # nothing is resized
    assert centre_window((100, 200), (50, 50)) == (6, 56, 88, 88)
    assert centre_window((30, 40), (60, 60)) == (0, 5, 30, 30)


@pytest.mark.parametrize(("format", "kind"), [("FLOAT16", "<f2"), ("FLOAT32", "<f4")])
def test_floats_become_the_pixels_that_they_were_made_of(format: str, kind: str) -> None:
    subtract, divide_by = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    manifest = dataclasses.replace(manifest_of(format), subtract=subtract, divide_by=divide_by)
    pixels = picture(0)
    encoded = ((pixels - np.array(subtract)) / np.array(divide_by)).astype(kind).tobytes()
    found = Decoder(manifest, (HEIGHT, WIDTH)).pixels(tf.constant(encoded), tf.constant([0, 0], tf.int64))
    assert np.array_equal(found.numpy(), pixels)

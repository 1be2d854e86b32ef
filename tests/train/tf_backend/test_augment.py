"""Pictures from examples: what is random goes by seed, epoch and number alone, and stays within its ranges."""

import dataclasses
import io
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from PIL import Image

from etl.errors import UsageError
from etl.formats.example import ImageExample, serialize
from etl.slices.manifest import Manifest
from tests.train.tf_backend.test_feed import batch_of
from train.config.augmentation import GRAY, Augmentation, Size, centre_window
from train.reader.batches import RecordBatch
from train.reader.order import epoch_seed
from train.tf_backend.augment import random_window, recolour_at_random
from train.tf_backend.decode import Decoder
from train.tf_backend.feed import PixelBatch, PixelFeed

Pixels = npt.NDArray[np.uint8]

HEIGHT, WIDTH = 40, 48
EVERYTHING = Augmentation(crop=True, flip=True, colour=True)


def manifest_of(format: str, channels: int = 3, size: Size = (HEIGHT, WIDTH)) -> Manifest:
    return Manifest(("a", "b"), *size, channels, format, {}, (100.0, 110.0, 120.0)[:channels], (50.0,) * channels)


def picture(number: int, channels: int = 3) -> Pixels:
    """A smooth one, as photographs are, so that JPEG changes little."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH] / WIDTH
    waves = [np.sin((2 + channel) * rows + number) + np.cos(3 * columns + channel) for channel in range(channels)]
    return (127 + 60 * np.stack(waves, axis=-1)).astype(np.uint8)


def encode(pixels: Pixels, format: str) -> bytes:
    if format == "RAW":
        return pixels.tobytes()
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(buffer, format, **({"quality": 95} if format == "JPEG" else {}))
    return buffer.getvalue()


def example(number: int, format: str, channels: int = 3) -> bytes:
    encoded = encode(picture(number, channels), format)
    return serialize(ImageExample(f"{number:04d}", number % 2, "a", format, HEIGHT, WIDTH, channels, encoded))


def decode(
    decoder: Decoder, numbers: list[int], *, batch: int = 5, format: str = "PNG", seed: int = 0
) -> list[PixelBatch]:
    def batches() -> Iterator[RecordBatch]:
        for start in range(0, len(numbers), batch):
            own = numbers[start : start + batch]
            made = batch_of([example(number, format, decoder.manifest.channels) for number in own])
            yield RecordBatch(made.addresses, made.sizes, np.array(own, np.int64), made.weights, made.holding)

    return list(PixelFeed(decoder, batch, threads=2).epoch(batches(), seed))


def by_key(found: list[PixelBatch]) -> dict[bytes, Pixels]:
    return {key: pixels.numpy() for each in found for key, pixels in zip(each.keys.numpy(), each.pixels, strict=True)}


def test_a_picture_goes_by_its_number_and_not_by_batch_or_order() -> None:
    decoder = Decoder(manifest_of("PNG"), (24, 24), EVERYTHING)
    numbers = list(range(20))
    once = by_key(decode(decoder, numbers, seed=epoch_seed(3, 7)))
    again = by_key(decode(decoder, numbers[::-1], batch=2, seed=epoch_seed(3, 7)))
    assert once.keys() == again.keys()
    assert all(np.array_equal(once[key], again[key]) for key in once)
    for seed in ((3, 8), (4, 7)):
        other = by_key(decode(decoder, numbers, seed=epoch_seed(*seed)))
        assert not any(np.array_equal(once[key], other[key]) for key in once)


@pytest.mark.integration
@pytest.mark.parametrize("format", ["PNG", "RAW", "JPEG"])
@pytest.mark.parametrize("channels", [1, 3])
def test_formats_give_the_same_pictures(format: str, channels: int) -> None:
    plain = by_key(decode(Decoder(manifest_of(format, channels), (HEIGHT, WIDTH)), list(range(5)), format=format))
    difference = 10 if format == "JPEG" else 0
    for key, pixels in plain.items():
        assert pixels.dtype == np.uint8
        assert np.abs(pixels.astype(int) - picture(int(key), channels)).max() <= difference
    augmented, wanted = (
        by_key(decode(Decoder(manifest_of(each, channels), (24, 24), EVERYTHING), list(range(5)), format=each))
        for each in (format, "RAW")
    )
    for key, pixels in augmented.items():
        assert np.abs(pixels.astype(int) - wanted[key]).max() <= 3 * difference


def test_a_jpeg_is_the_same_where_only_its_window_is_decoded() -> None:
    encoded = encode(picture(0), "JPEG")
    whole = tf.io.decode_jpeg(encoded).numpy()
    decoder = Decoder(manifest_of("JPEG"), (20, 20))
    top, left, height, width = centre_window((HEIGHT, WIDTH), (20, 20))
    wanted = tf.image.resize(whole[top : top + height, left : left + width], (20, 20)).numpy()
    found = decoder.pixels(tf.constant(encoded), tf.zeros(2, tf.int64)).numpy()
    assert np.abs(np.round(wanted) - found).max() <= 1


def windows(augmentation: Augmentation, shape: Size = (200, 300), number: int = 2000) -> npt.NDArray[np.int32]:
    seeds = tf.stack([tf.zeros(number, tf.int64), tf.range(number, dtype=tf.int64)], axis=1)
    one = tf.function(lambda seed: random_window(augmentation, (*shape, 3), seed), autograph=False)
    return np.array(tf.function(lambda: tf.map_fn(one, seeds, fn_output_signature=tf.int32), autograph=False)())


def defined_windows(least: float, shape: Size, number: int = 4000) -> npt.NDArray[np.int32]:
    """Random crops by their definition: torchvision's RandomResizedCrop with a scale of (``least``, 1)."""
    generator = np.random.default_rng(7)
    height, width = shape
    low, high = 3 / 4, 4 / 3

    def window() -> tuple[int, int, int, int]:
        for _ in range(10):
            area = height * width * generator.uniform(least, 1)
            ratio = math.exp(generator.uniform(math.log(low), math.log(high)))
            wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < tall <= height:
                top, left = generator.integers(height - tall + 1), generator.integers(width - wide + 1)
                return int(top), int(left), tall, wide
        wide, tall = min(width, round(height * high)), min(height, round(width / low))
        return (height - tall) // 2, (width - wide) // 2, tall, wide

    return np.array([window() for _ in range(number)], np.int32)


def distance(ones: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> float:
    """The Kolmogorov-Smirnov distance of two samples."""
    values = np.concatenate([ones, others])
    found = (np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (ones, others))
    return float(np.abs(np.subtract(*found)).max())


@pytest.mark.parametrize(
    ("shape", "least"), [((200, 300), 0.02), ((200, 300), 0.5), ((40, 400), 0.08), ((260, 30), 0.08), ((3, 4), 0.08)]
)
def test_windows_have_the_distribution_of_the_definition(shape: Size, least: float) -> None:
    """Area, ratio and position; in the wide and the tall picture, the centre window if no attempt fits."""
    found = windows(Augmentation.of(["crop"], least), shape)
    wanted = defined_windows(least, shape)
    assert (found[:, :2] >= 0).all() and (found[:, 2:] >= 1).all()
    assert (found[:, :2] + found[:, 2:] <= shape).all()
    for name, value in (
        ("area", lambda each: each[:, 2] * each[:, 3] / math.prod(shape)),
        ("ratio", lambda each: each[:, 3] / each[:, 2]),
        ("top", lambda each: each[:, 0]),
        ("left", lambda each: each[:, 1]),
    ):
        assert distance(value(found), value(wanted)) < 0.06, name  # by chance once in 7,000


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
        found = recolour_at_random(Augmentation(colour=True, brightness=0.3), pixels, seed).numpy()
        spread = np.array([0.3, 0.4, 0.4], np.float32)
        brightness, contrast, saturation = 1 + spread * tf.random.stateless_uniform((3,), seed, -1, 1).numpy()
        wanted = pixels.numpy() * brightness
        wanted = contrast * wanted + (1 - contrast) * (wanted @ gray).mean()
        if channels == 3:
            wanted = saturation * wanted + (1 - saturation) * (wanted @ gray)[..., np.newaxis]
        assert np.allclose(found, wanted.clip(0, 255), atol=0.01)
        factors.append((brightness, contrast, saturation))
    low, high = np.min(factors, axis=0), np.max(factors, axis=0)
    assert low == pytest.approx([0.7, 0.6, 0.6], abs=0.02)
    assert high == pytest.approx([1.3, 1.4, 1.4], abs=0.02)


@pytest.mark.parametrize(
    ("shape", "size", "window"),
    [
        ((256, 256), (224, 224), (16, 16, 224, 224)),  # nothing is resized
        ((240, 240), (224, 224), (8, 8, 224, 224)),
        ((512, 512), (224, 224), (32, 32, 448, 448)),
        ((100, 200), (50, 50), (6, 56, 88, 88)),
        ((28, 28), (56, 56), (0, 0, 28, 28)),
        ((30, 40), (60, 60), (0, 5, 30, 30)),
    ],
)
def test_what_is_shown_where_nothing_is_random(shape: Size, size: Size, window: tuple[int, ...]) -> None:
    assert centre_window(shape, size) == window


def test_normalized_pictures_are_float32_and_labels_stay_with_them() -> None:
    found = decode(Decoder(manifest_of("PNG"), (24, 24)), list(range(5)))
    assert [each.labels.numpy().tolist() for each in found] == [[0, 1, 0, 1, 0]]
    plain = by_key(found)
    normalized = by_key(decode(Decoder(manifest_of("PNG"), (24, 24), normalize=True), list(range(5))))
    for key, pixels in normalized.items():
        assert pixels.dtype == np.float32
        assert np.abs(pixels * 50 + (100, 110, 120) - plain[key]).max() <= 0.51  # which are rounded


@pytest.mark.parametrize(
    "wrong",
    [{"area": (0.0, 1.0)}, {"area": (0.5, 0.2)}, {"area": (0.5, 1.2)}, {"ratio": (2.0, 1.0)}, {"contrast": 1.5}],
)
def test_ranges_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Augmentation(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("format", "kind"), [("FLOAT16", "<f2"), ("FLOAT32", "<f4")])
def test_floats_become_the_pixels_that_they_were_made_of(format: str, kind: str) -> None:
    subtract, divide_by = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    manifest = dataclasses.replace(manifest_of(format), subtract=subtract, divide_by=divide_by)
    pixels = picture(0)
    encoded = ((pixels - np.array(subtract)) / np.array(divide_by)).astype(kind).tobytes()
    found = Decoder(manifest, (HEIGHT, WIDTH)).pixels(tf.constant(encoded), tf.constant([0, 0], tf.int64))
    assert np.array_equal(found.numpy(), pixels)

"""Pictures for PyTorch beside those for TensorFlow, and what is random in them. The module imports no PyTorch."""

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from etl.errors import DataError
from etl.formats.example import ImageExample, parse, serialize
from tests.lib.examples import EVERYTHING, HEIGHT, WIDTH, example, manifest_of, picture
from train.config.augmentation import Augmentation
from train.tf_backend import decode as tensorflow_decode
from train.tf_backend.augment import random_window as tensorflow_window
from train.torch_backend.decode import Decoder, random_window, recolour

SEED = (3, 0)


def pixels_of(decoder: Decoder, data: bytes, seed: tuple[int, int] = SEED) -> npt.NDArray[np.uint8]:
    pixels = np.zeros((*decoder.size, decoder.manifest.channels), np.uint8)
    assert decoder.decode_into(pixels, data, seed) == (0, b"0000")
    return pixels


@pytest.mark.parametrize("format", ["PNG", "RAW", "JPEG"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (20, 20)])
def test_pictures_are_those_of_tensorflow(format: str, channels: int, size: tuple[int, int]) -> None:
    manifest, data = manifest_of(format, channels), example(0, format, channels)
    expected = tensorflow_decode.Decoder(manifest, size).pixels(tf.constant(parse(data).encoded), tf.zeros(2, tf.int64))
    found = pixels_of(Decoder(manifest, size), data)
    assert np.abs(found.astype(int) - expected.numpy().astype(int)).max() <= 2  # of rounding


def test_a_picture_goes_by_the_seed_and_its_number() -> None:
    decoder, data = Decoder(manifest_of("PNG"), (24, 24), EVERYTHING), example(0, "PNG")
    first = pixels_of(decoder, data)
    assert np.array_equal(first, pixels_of(decoder, data))
    for other in ((4, 0), (3, 1)):
        assert not np.array_equal(first, pixels_of(decoder, data, other))


def test_half_of_the_pictures_are_mirrored() -> None:
    decoder, data = Decoder(manifest_of("RAW"), (HEIGHT, WIDTH), Augmentation(flip=True)), example(0, "RAW")
    plain = picture(0)
    found = [pixels_of(decoder, data, (0, number)) for number in range(200)]
    mirrored = sum(np.array_equal(each, plain[:, ::-1]) for each in found)
    assert mirrored + sum(np.array_equal(each, plain) for each in found) == 200
    assert 70 < mirrored < 130


def test_windows_are_those_of_tensorflow_on_average() -> None:
    augmentation, random = Augmentation(crop=True), np.random.default_rng(0)
    found = np.array([random_window(augmentation, (200, 300), random) for _ in range(2000)])
    find_window = tf.function(lambda seed: tensorflow_window(augmentation, (200, 300, 3), seed), autograph=False)
    expected = np.array([find_window(tf.constant([0, number], tf.int64)).numpy() for number in range(2000)])
    assert facts_of(found) == pytest.approx(facts_of(expected), abs=0.02)
    assert np.all(found[:, 0] + found[:, 2] <= 200) and np.all(found[:, 1] + found[:, 3] <= 300)
    assert random_window(Augmentation(least_area=1), (10, 100), random) == (0, 43, 10, 13)


def facts_of(windows: npt.NDArray[Any]) -> list[float]:
    """Means of the area, of the logarithm of the ratio, and of the position in what is left, each from 0 to 1."""
    top, left, height, width = windows.T
    parts = (height * width / 60_000, np.log(width / height), top / np.maximum(1, 200 - height), left / (301 - width))
    return [float(each.mean()) for each in parts]


def test_colours_change_as_in_tensorflow() -> None:
    """Brightness, contrast and saturation of 1.4, 0.8 and 1.2."""
    drawn = mock.Mock(**{"uniform.return_value": np.array([1.0, -0.5, 0.5])})
    pixels = picture(0)
    gray = pixels @ np.array([0.299, 0.587, 0.114])
    brighter = np.float64(1.4) * pixels
    contrasted = 0.8 * brighter + 0.2 * 1.4 * gray.mean()
    expected = 1.2 * contrasted - 0.2 * (contrasted @ np.array([0.299, 0.587, 0.114]))[..., np.newaxis]
    found = recolour(pixels, drawn)
    assert np.abs(found - np.clip(expected, 0, 255)).max() <= 1


def test_floats_are_levels_again() -> None:
    manifest = replace(manifest_of("FLOAT16", 1, (2, 2)), divide_by=(255.0,), subtract=(0.0,))
    levels = np.array([[0, 64], [128, 255]], np.uint8)
    encoded = (levels / 255).astype("<f2").tobytes()
    data = serialize(ImageExample("0000", 0, "a", "FLOAT16", 2, 2, 1, encoded))
    assert np.array_equal(pixels_of(Decoder(manifest, (2, 2)), data)[..., 0], levels)


def test_a_picture_that_cannot_be_decoded_is_named() -> None:
    for format in ("PNG", "JPEG", "RAW"):
        data = serialize(ImageExample("a/cat.jpg", 0, "a", format, HEIGHT, WIDTH, 3, b"\x89PNG, but no more"))
        decoder, pixels = Decoder(manifest_of(format), (HEIGHT, WIDTH)), np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        with pytest.raises(DataError, match=r"^a/cat\.jpg: its slice has a picture that cannot be decoded"):
            decoder.decode_into(pixels, data, SEED)

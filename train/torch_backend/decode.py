"""From serialized examples to pixels, augmented or not, by OpenCV and libjpeg-turbo. Imports no PyTorch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from etl.errors import DataError
from etl.formats.example import ImageExample, parse
from etl.slices.manifest import Manifest
from train.config.augmentation import (
    COLOUR,
    CROP_ATTEMPTS,
    GRAY,
    NOTHING,
    RATIO,
    Augmentation,
    Size,
    centre_window,
    fallback_window,
)

Pixels = npt.NDArray[np.uint8]
Window = tuple[int, int, int, int]  # top, left, height, width
Seed = tuple[int, int]  # that of an epoch, and an example's number
Decoded = list[tuple[int, bytes]]  # labels and keys

UINT64 = 1 << 64
FLOATS = {"FLOAT16": "<f2", "FLOAT32": "<f4"}


@dataclass(frozen=True)
class Decoder:
    """Decodes examples of ``manifest`` to pictures of ``size`` (height, width), uint8.

    A picture that is augmented depends on the seed of the epoch and its number in its split, and on nothing else.
    """

    manifest: Manifest
    size: Size
    augmentation: Augmentation = NOTHING

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a picture: (height, width, channels)."""
        return *self.size, self.manifest.channels

    def decode_into(self, pixels: Pixels, data: bytes, seed: Seed | None) -> tuple[int, bytes]:
        """Write the picture of a serialized example to ``pixels``, of `shape`; returns the label and the key.

        Without a ``seed`` it is not augmented. Raises DataError if it cannot be decoded.
        """
        example = parse(data)
        try:
            picture: Any = self._picture(example)
        except (ValueError, cv2.error) as error:
            raise DataError(f"{example.key}: its slice has a picture that cannot be decoded ({error})") from error
        wanted = self.augmentation
        random = None if seed is None or wanted == NOTHING else generator(seed)
        shape = picture.shape[:2]
        if random is not None and wanted.crop:
            window = random_window(wanted, shape, random)
        else:
            window = centre_window(shape, self.size)
        top, left, height, width = window
        picture = picture[top : top + height, left : left + width]
        if random is not None and wanted.flip and random.random() < 0.5:
            picture = picture[:, ::-1]
        if picture.shape[:2] != self.size:
            picture = cv2.resize(np.ascontiguousarray(picture), self.size[::-1], interpolation=cv2.INTER_LINEAR)
        picture = picture.reshape(pixels.shape)  # OpenCV leaves out a single channel
        pixels[:] = picture if random is None or not wanted.colour else recolour(picture, random)
        return example.label, example.key.encode()

    def decode_all(self, pixels: Pixels, examples: Sequence[bytes], seeds: Sequence[Seed | None]) -> Decoded:
        """`decode_into` for several: ``pixels`` are of shape (examples, height, width, channels)."""
        return [self.decode_into(*each) for each in zip(pixels, examples, seeds, strict=True)]

    def _picture(self, example: ImageExample) -> Pixels:
        """As the slice has it: shape (height, width, channels), or (height, width)."""
        manifest = self.manifest
        shape = (*manifest.size, manifest.channels)
        if manifest.format == "JPEG":
            picture = simplejpeg.decode_jpeg(example.encoded, "GRAY" if shape[2] == 1 else "RGB", fastdct=True)
        elif manifest.format == "PNG":
            encoded = np.frombuffer(example.encoded, np.uint8)
            picture = cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE if shape[2] == 1 else cv2.IMREAD_COLOR_RGB)
            if picture is None:
                raise ValueError("not a PNG")
        elif manifest.format in FLOATS:
            floats = np.frombuffer(example.encoded, FLOATS[manifest.format]).reshape(shape).astype(np.float32)
            levels = floats * np.array(manifest.divide_by, "f4") + np.array(manifest.subtract, "f4")
            picture = np.rint(levels).astype(np.uint8)
        else:
            picture = np.frombuffer(example.encoded, np.uint8).reshape(shape)
        if picture.shape[:2] != shape[:2]:
            raise ValueError(f"it is of {picture.shape[1]}x{picture.shape[0]}, not {shape[1]}x{shape[0]}")
        return picture


def generator(seed: Seed) -> np.random.Generator:
    """What is random in a picture."""
    return np.random.Generator(np.random.Philox(key=np.array([each % UINT64 for each in seed], np.uint64)))


def random_window(augmentation: Augmentation, shape: tuple[int, ...], random: np.random.Generator) -> Window:
    """A window of a picture of ``shape`` (height, width).

    As torchvision's RandomResizedCrop: the first of `CROP_ATTEMPTS` windows that fits, uniform in area, in the
    logarithm of the ratio, and in position; the `fallback_window` if none fits.
    """
    for _ in range(CROP_ATTEMPTS):
        area = random.uniform(augmentation.least_area, 1.0) * shape[0] * shape[1]
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        height, width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 1 <= height <= shape[0] and 1 <= width <= shape[1]:
            top, left = random.integers(shape[0] - height + 1), random.integers(shape[1] - width + 1)
            return int(top), int(left), height, width
    return fallback_window(shape)


def recolour(picture: Pixels, random: np.random.Generator) -> Pixels:
    """Other brightness, contrast and saturation, in this order; see `train.tf_backend.augment`."""
    brightness, contrast, saturation = 1 + COLOUR * random.uniform(-1, 1, 3)
    channels = picture.shape[2]
    gray = np.array(GRAY if channels == 3 else [1 / channels] * channels)
    matrix = saturation * np.eye(channels) + (1 - saturation) * np.tile(gray[:, np.newaxis], (1, channels))
    mixed = picture.astype(np.float32) @ (brightness * contrast * matrix).astype(np.float32)
    shift = brightness * (1 - contrast) * (picture.mean(axis=(0, 1)) @ gray)
    return np.rint(np.clip(mixed + np.float32(shift), 0, 255)).astype(np.uint8)

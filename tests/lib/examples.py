"""Pictures as examples of slices, in memory, and batches of them. Imports neither TensorFlow nor PyTorch."""

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from etl.formats.example import ImageExample, serialize
from etl.slices.manifest import Manifest
from train.config.augmentation import Augmentation, Size
from train.reader.batches import RecordBatch
from train.reader.memory import Buffer

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


def batch_of(records: Sequence[bytes], first: int = 0) -> RecordBatch:
    sizes = np.array([len(record) for record in records], np.int64)
    buffer = Buffer(int(sizes.sum()))
    buffer.view[:] = b"".join(records)
    addresses = buffer.address + np.cumsum(sizes) - sizes
    numbers = np.arange(first, first + len(records), dtype=np.int64)
    return RecordBatch(addresses, sizes, numbers, np.ones(len(records), np.float32), (buffer,))

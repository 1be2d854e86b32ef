"""Encode normalised pixels for an example."""

import functools
import io

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from etl.images.config import FLOATS, JPEG, PNG, NormalizeConfig

MAX_JPEG_SIDE = 65_500  # libjpeg's JPEG_MAX_DIMENSION

Pixels = npt.NDArray[np.uint8]


def encode(pixels: Pixels, config: NormalizeConfig) -> bytes:
    """Encode ``pixels``, uint8 of shape (height, width, channels) and C-contiguous, in the format of ``config``.

    Floats are little-endian, of the same shape: (pixel - subtract) / divide_by, rounded once.
    """
    if config.format == JPEG:
        gray = config.channels == 1
        return simplejpeg.encode_jpeg(
            pixels,
            config.quality,
            "GRAY" if gray else "RGB",
            "Gray" if gray else str(config.subsampling),
            fastdct=False,
        )
    if config.format == PNG:
        buffer = io.BytesIO()
        Image.fromarray(pixels[..., 0] if config.channels == 1 else pixels).save(buffer, "PNG")
        return buffer.getvalue()
    if config.format in FLOATS:
        table = _float_table(config.format, *config.scaling)
        return np.stack([table[c][pixels[..., c]] for c in range(config.channels)], axis=-1).tobytes()
    return pixels.tobytes()


@functools.lru_cache(1)
def _float_table(format: str, subtract: tuple[float, ...], divide_by: tuple[float, ...]) -> npt.NDArray[np.floating]:
    """Return the values of the 256 levels, of shape (channels, 256)."""
    levels = np.arange(256, dtype=np.float64)
    exact = (levels - np.array(subtract)[:, None]) / np.array(divide_by)[:, None]
    return exact.astype(np.dtype(FLOATS[format]).newbyteorder("<"))

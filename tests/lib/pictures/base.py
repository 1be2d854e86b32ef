"""What all pictures of the table show, how far a decoder may be off, and how Pillow saves them."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

HEIGHT, WIDTH = 40, 48
TRAILING = b"what somebody left here"
_CORNERS = np.array([[(230, 40, 30), (40, 200, 60)], [(30, 60, 220), (240, 220, 120)]], float)


@dataclass(frozen=True)
class Picture:
    """An image file, and what must become of it: these ``pixels``, or a reject with one of these ``reasons``.

    ``pixels`` are uint8 (height, width, 3), upright, sRGB, over white. For each channel, the mean distance from them is
    at most ``mean`` grey levels and the largest at most ``worst``.
    """

    name: str
    data: bytes = field(repr=False)
    pixels: Pixels | None = field(default=None, repr=False)
    mean: float = 0.0
    worst: int = 0
    reasons: tuple[str, ...] = ()


def good(name: str, data: bytes, pixels: Pixels, mean: float = 0.0, worst: int = 0) -> Picture:
    """A picture with these pixels; gray ones (height, width) have three equal channels."""
    colored = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    return Picture(name, data, colored, mean, worst)


def alike(pixels: Pixels, files: Mapping[str, bytes], mean: float = 0.0, worst: int = 0) -> Iterator[Picture]:
    """Files, by name, that all show the same."""
    return (good(name, data, pixels, mean, worst) for name, data in files.items())


def rejects(files: Mapping[str, bytes], *reasons: str) -> Iterator[Picture]:
    """Files, by name, that must be rejected for one of these reasons."""
    return (Picture(name, data, reasons=reasons) for name, data in files.items())


def content(height: int = HEIGHT, width: int = WIDTH) -> Pixels:
    """Smooth colours between four corners, (height, width, 3): no turn, mirror, inversion or order of channels fits."""
    down, across = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[None, :, None]
    left = _CORNERS[0, 0] * (1 - down) + _CORNERS[1, 0] * down
    right = _CORNERS[0, 1] * (1 - down) + _CORNERS[1, 1] * down
    return np.round(left * (1 - across) + right * across).astype(np.uint8)


def luma(pixels: Pixels) -> npt.NDArray[np.float64]:
    """The luminance of RGB pixels by ITU-R BT.601, as JPEG and Pillow have it; (height, width), 0 to 255."""
    return pixels.astype(float) @ np.array([0.299, 0.587, 0.114])


def gray_content(levels: int) -> npt.NDArray[np.int64]:
    """The luminance of the content as integers from 0 to ``levels`` - 1, (height, width)."""
    return np.round(luma(content()) * (levels - 1) / 255).astype(np.int64)


COLORS, GRAYS = content(), gray_content(256).astype(np.uint8)
ALPHA: Pixels = np.tile(np.round(np.linspace(0, 255, WIDTH)).astype(np.uint8), (HEIGHT, 1))  # 0 at the left
TRANSLUCENT = np.dstack([COLORS, ALPHA])


def over_white(pixels: Pixels, alpha: Pixels = ALPHA) -> Pixels:
    """RGB or gray pixels with alpha (height, width) as they look over white."""
    opacity = alpha.astype(float).reshape(alpha.shape + (1,) * (pixels.ndim - 2)) / 255
    return np.round(pixels * opacity + 255 * (1 - opacity)).astype(np.uint8)


def bands(colors: int) -> Pixels:
    """Indices from 0 to ``colors`` - 1 in slanting bands, (height, width)."""
    down, across = np.arange(HEIGHT)[:, None] / HEIGHT, np.arange(WIDTH)[None, :] / WIDTH
    return np.floor((across + 2 * down) / 3 * colors).astype(np.uint8)


def palette(colors: int) -> Pixels:
    """So many colours, from an orange to a blue; (colors, 3)."""
    steps = np.linspace(0, 1, colors)[:, None]
    return np.round(np.array([235, 90, 20]) * (1 - steps) + np.array([30, 60, 210]) * steps).astype(np.uint8)


def palette_image(colors: int, indices: Pixels | None = None) -> Image.Image:
    """Indices, those of the bands if none are given, as a palette image of Pillow's."""
    image = Image.fromarray(bands(colors) if indices is None else indices).convert("P")
    image.putpalette(palette(colors).tobytes())
    return image


def save(pixels: npt.NDArray[Any] | Image.Image, kind: str, **options: Any) -> bytes:
    """A file of these pixels as Pillow writes it."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()

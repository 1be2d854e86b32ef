"""What all pictures of the table share: what they show, how they differ from what is right, and how they are named."""

import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

HEIGHT, WIDTH = 40, 48
WHITE = 255
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
    """A picture that must come out as these pixels; gray ones (height, width) have three equal channels."""
    colored = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2)
    return Picture(name, data, colored, mean, worst)


def bad(name: str, data: bytes, *reasons: str) -> Picture:
    """A file that must be rejected; for one of these reasons, where more than one is true of it."""
    return Picture(name, data, reasons=reasons)


def content(height: int = HEIGHT, width: int = WIDTH) -> Pixels:
    """Smooth colours between four corners, (height, width, 3): no turn, mirror, inversion or order of channels fits."""
    down, across = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[None, :, None]
    left = _CORNERS[0, 0] * (1 - down) + _CORNERS[1, 0] * down
    right = _CORNERS[0, 1] * (1 - down) + _CORNERS[1, 1] * down
    return np.round(left * (1 - across) + right * across).astype(np.uint8)


def gray_content(levels: int = 256) -> npt.NDArray[np.int64]:
    """The luminance of the content as integers from 0 to ``levels`` - 1, (height, width)."""
    return np.round(luma(content()) * (levels - 1) / 255).astype(np.int64)


def luma(pixels: Pixels) -> npt.NDArray[np.float64]:
    """The luminance of RGB pixels by ITU-R BT.601, as JPEG and Pillow have it; (height, width), 0 to 255."""
    return pixels.astype(float) @ np.array([0.299, 0.587, 0.114])


def ramp() -> Pixels:
    """Alpha from 0, at the left, to 255; (height, width)."""
    return np.tile(np.round(np.linspace(0, 255, WIDTH)).astype(np.uint8), (HEIGHT, 1))


def over_white(pixels: Pixels, alpha: Pixels) -> Pixels:
    """RGB or gray pixels with alpha (height, width) as they look over white."""
    opacity = alpha.astype(float) / 255
    if pixels.ndim == 3:
        opacity = opacity[..., None]
    return np.round(pixels * opacity + WHITE * (1 - opacity)).astype(np.uint8)


def bands(colors: int) -> Pixels:
    """Indices from 0 to ``colors`` - 1 in slanting bands, (height, width)."""
    down, across = np.arange(HEIGHT)[:, None] / HEIGHT, np.arange(WIDTH)[None, :] / WIDTH
    return np.floor((across + 2 * down) / 3 * colors).astype(np.uint8)


def palette(colors: int) -> Pixels:
    """So many colours, from an orange to a blue; (colors, 3)."""
    steps = np.linspace(0, 1, colors)[:, None]
    return np.round(np.array([235.0, 90.0, 20.0]) * (1 - steps) + np.array([30.0, 60.0, 210.0]) * steps).astype(
        np.uint8
    )


def save(pixels: npt.NDArray[Any], kind: str, mode: str | None = None, **options: Any) -> bytes:
    """A file of these pixels as Pillow writes it; ``mode`` is Pillow's where the shape does not tell it."""
    image = Image.fromarray(pixels)
    if mode is not None and image.mode != mode:
        height, width = pixels.shape[:2]
        image = Image.frombytes(mode, (width, height), pixels.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def palette_image(colors: int) -> Image.Image:
    """The slanting bands as a palette image of Pillow's."""
    image = Image.fromarray(bands(colors)).convert("P")
    image.frombytes(bands(colors).tobytes())
    image.putpalette(palette(colors).tobytes())
    return image


def save_image(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()

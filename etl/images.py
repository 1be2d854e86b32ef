"""From an image file's bytes to normalised pixels and their encoded form. Pure: bytes in, bytes or a reason out."""

import enum
import io
import struct
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from etl.config import JPEG, PNG, NormalizeConfig

MAX_PIXELS = 100_000_000
BACKGROUND = (255, 255, 255)

_ENCODER_OPTIONS: dict[str, dict[str, int]] = {JPEG: {"subsampling": 2}, PNG: {}}  # 2: Pillow's code for 4:2:0


class Reason(enum.StrEnum):
    """Why an image was rejected: a closed list."""

    EMPTY = "empty"
    NOT_AN_IMAGE = "not-an-image"
    TRUNCATED = "truncated"
    BROKEN = "broken"
    TOO_MANY_PIXELS = "too-many-pixels"


@dataclass(frozen=True)
class Reject:
    """An image that cannot be used, and why."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class Normalized:
    """A normalised image: ``encoded`` as configured; exact sums of its pixels and of their squares by channel."""

    encoded: bytes
    sums: list[int]
    squares: list[int]
    source_format: str
    source_width: int
    source_height: int


def normalize_image(data: bytes, config: NormalizeConfig) -> Normalized | Reject:
    """Decode ``data`` by its content, bring it to the size and colour of ``config``, and encode it."""
    decoded = _decode(data, config)
    if isinstance(decoded, Reject):
        return decoded
    image, source_format, (width, height) = decoded
    resized = _resize(image, config)
    pixels = np.asarray(resized, dtype=np.uint8).reshape(config.height, config.width, config.channels)
    sums, squares = channel_sums(pixels)
    return Normalized(_encode(resized, config), sums, squares, source_format, width, height)


def channel_sums(pixels: npt.NDArray[np.uint8]) -> tuple[list[int], list[int]]:
    """Exact sums, and sums of squares, of each channel of uint8 pixels of shape (height, width, channels)."""
    flat = pixels.reshape(-1, pixels.shape[-1]).astype(np.uint64)
    return [int(value) for value in flat.sum(axis=0)], [int(value) for value in (flat * flat).sum(axis=0)]


def _decode(data: bytes, config: NormalizeConfig) -> tuple[Image.Image, str, tuple[int, int]] | Reject:
    if not data:
        return Reject(Reason.EMPTY, "0 bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's notes on odd metadata and on size, which is limited below
            with Image.open(io.BytesIO(data)) as image:
                source_format, size = (image.format or "?").lower(), image.size
                if size[0] * size[1] > MAX_PIXELS:
                    return Reject(Reason.TOO_MANY_PIXELS, f"{size[0]}x{size[1]}")
                image.load()
                upright = ImageOps.exif_transpose(image)
                return _convert(upright, config.color), source_format, size
    except UnidentifiedImageError:
        return Reject(Reason.NOT_AN_IMAGE, f"starts with {data[:8].hex()}")
    except Image.DecompressionBombError as error:
        return Reject(Reason.TOO_MANY_PIXELS, str(error))
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, KeyError, struct.error) as error:
        truncated = isinstance(error, EOFError) or "truncated" in str(error).lower()
        return Reject(Reason.TRUNCATED if truncated else Reason.BROKEN, str(error)[:200])


def _convert(image: Image.Image, color: str) -> Image.Image:
    mode = "RGB" if color == "rgb" else "L"
    if image.mode.startswith("I;16") or image.mode == "I":  # 16 bits a channel: keep the upper 8
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, (*BACKGROUND, 255))
        image = Image.alpha_composite(opaque, image.convert("RGBA"))
    return image if image.mode == mode else image.convert(mode)


def _resize(image: Image.Image, config: NormalizeConfig) -> Image.Image:
    """To the configured size with an antialiasing (Lanczos) filter, straight from the part that is kept."""
    target = (config.width, config.height)
    if image.size == target:
        return image
    box = (0.0, 0.0, float(image.width), float(image.height))
    if config.fit == "crop":
        box = centre_box(image.width, image.height, config.width, config.height)
    return image.resize(target, Image.Resampling.LANCZOS, box=box)


def centre_box(width: int, height: int, target_width: int, target_height: int) -> tuple[float, float, float, float]:
    """The largest centred (left, upper, right, lower) box, in pixels, of the target's shape.

    Resizing this box to the target is the same as bringing the shorter side to the target and cropping the centre.
    """
    scale = min(width / target_width, height / target_height)
    box_width, box_height = target_width * scale, target_height * scale
    left, upper = (width - box_width) / 2, (height - box_height) / 2
    return left, upper, min(left + box_width, width), min(upper + box_height, height)


def _encode(image: Image.Image, config: NormalizeConfig) -> bytes:
    if config.format not in _ENCODER_OPTIONS:
        return image.tobytes()
    options = {"quality": config.quality} if config.format == JPEG else {}
    buffer = io.BytesIO()
    bare = Image.fromarray(np.asarray(image))  # the pixels alone, without the source's comments and profiles
    bare.save(buffer, config.format.upper(), **_ENCODER_OPTIONS[config.format], **options)
    return buffer.getvalue()

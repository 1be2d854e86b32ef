"""Decode, resize and encode one image. Pure: the bytes of a file in, encoded pixels or a reason out."""

import functools
import io

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from etl.images.config import FLOATS, JPEG, PNG, NormalizeConfig
from etl.images.containers.jpeg import is_last_scan
from etl.images.decode import GRAY, decode, mirrored, upright_size
from etl.images.geometry import Plan, Size, make_plan
from etl.images.header import Header, read_header
from etl.images.resize import Pixels, apply_plan
from etl.images.result import NormalizedImage, Reason, Reject

MAX_JPEG_SIDE = 65_500  # libjpeg's JPEG_MAX_DIMENSION
SPARE = 2  # a JPEG is decoded to at least so many times its final size, each way


def normalize_image(data: bytes, config: NormalizeConfig) -> NormalizedImage | Reject:
    """Decode ``data`` by its content, bring it to the size and colour of ``config``, and encode it.

    Time and memory are not limited here: see `etl.images.sandbox`. Raises MemoryError.
    """
    header = read_limited_header(data, config)
    return header if isinstance(header, Reject) else normalize_decoded(data, header, config)


def read_limited_header(data: bytes, config: NormalizeConfig) -> Header | Reject:
    """Read the header of a file, or reject one that is too large."""
    return config.limits.check_bytes(len(data)) or read_header(data)


def normalize_decoded(data: bytes, header: Header, config: NormalizeConfig) -> NormalizedImage | Reject:
    """Decode, resize and encode a file whose ``header`` is that of `read_limited_header`."""
    if too_much := config.limits.check(header.width, header.height, header.frames):
        return too_much
    plan = make_plan(upright_size(header), Size(config.height, config.width), config.fit, config.only_shrink)
    if too_large := _check_canvas(plan.canvas, config):
        return too_large
    decoded = decode(data, header, config, plan.least_source(SPARE))
    if isinstance(decoded, Reject):
        return decoded
    found = Size(*decoded.shape[:2])
    if found != plan.source:
        plan = plan.of_reduced(found, mirrored(header.orientation))
    pixels = apply_plan(decoded, plan, in_channels(config.background, config.color))
    sums, squares = channel_sums(pixels)
    encoded = data if _passes(data, header, plan, config) else encode(pixels, config)
    return NormalizedImage(encoded, *plan.canvas, sums, squares, header.format, header.width, header.height)


def channel_sums(pixels: Pixels) -> tuple[list[int], list[int]]:
    """Compute exact sums, and sums of squares, of each channel of uint8 pixels of shape (height, width, channels).

    OpenCV adds whole numbers and returns them as float64, exact below 2**53; a square has at most 16 bits.
    """
    channels = pixels.shape[2]
    squares = pixels.astype(np.uint16)
    np.multiply(squares, squares, out=squares)
    both = (cv2.sumElems(each)[:channels] for each in (pixels, squares))
    sums, sums_of_squares = ([int(value) for value in each] for each in both)
    return sums, sums_of_squares


def _check_canvas(canvas: Size, config: NormalizeConfig) -> Reject | None:
    text = f"would become {canvas.width}x{canvas.height}"
    if canvas.height * canvas.width > config.limits.pixels:
        return Reject(Reason.TOO_MANY_PIXELS, f"{text}, at most {config.limits.pixels} pixels are allowed")
    if config.format == JPEG and max(canvas) > MAX_JPEG_SIDE:
        return Reject(Reason.BAD_ASPECT, f"{text}, sides of a JPEG have at most {MAX_JPEG_SIDE} pixels")
    return None


def in_channels(background: tuple[int, int, int], color: str) -> tuple[int, ...]:
    """Convert the background to the channels of the pixels; gray by ITU-R BT.601."""
    if color != GRAY:
        return background
    red, green, blue = background
    return ((299 * red + 587 * green + 114 * blue + 500) // 1000,)


def _passes(data: bytes, header: Header, plan: Plan, config: NormalizeConfig) -> bool:
    """True if the file may be kept byte for byte: it has the configured form, and contains its picture only."""
    return (
        config.pass_through
        and header.bare
        and (header.format, header.components, header.orientation) == (config.format, config.channels, 1)
        and plan.changes_nothing
        and (header.format != JPEG or is_last_scan(data, header.offset))
    )


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

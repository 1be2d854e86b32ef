"""From an image file's bytes to normalised pixels and their encoded form. Pure: bytes in, bytes or a reason out."""

import cv2
import numpy as np
import numpy.typing as npt

from etl.images.config import JPEG, NormalizeConfig
from etl.images.containers.jpeg import is_last_scan
from etl.images.decode import GRAY, DecodeOptions, decode, mirrored, upright_size
from etl.images.encode import LARGEST_JPEG_SIDE, encode
from etl.images.geometry import Plan, Size, make_plan
from etl.images.header import Header, read_header
from etl.images.resize import apply_plan
from etl.images.result import Normalized, Reason, Reject

SPARE = 2  # a JPEG is not decoded below so many times the size that it gets, each way


def normalize_image(data: bytes, config: NormalizeConfig) -> Normalized | Reject:
    """Decode ``data`` by its content, bring it to the size and colour of ``config``, and encode it.

    Time and memory are not limited here: see `etl.images.sandbox`. Raises MemoryError where there is not enough.
    """
    header = read_limited_header(data, config)
    return header if isinstance(header, Reject) else normalize_decoded(data, header, config)


def read_limited_header(data: bytes, config: NormalizeConfig) -> Header | Reject:
    """What the file says of itself, if it is not too large."""
    return config.limits.check_bytes(len(data)) or read_header(data)


def normalize_decoded(data: bytes, header: Header, config: NormalizeConfig) -> Normalized | Reject:
    """The second half of `normalize_image`: for a file of which `read_limited_header` has found this ``header``."""
    if too_much := config.limits.check(header.width, header.height, header.frames):
        return too_much
    plan = make_plan(upright_size(header), Size(config.height, config.width), config.fit, config.only_shrink)
    if too_large := _check_canvas(plan.canvas, config):
        return too_large
    decoded = decode(data, header, DecodeOptions(config.color, config.background, plan.least_source(SPARE)))
    if isinstance(decoded, Reject):
        return decoded
    found = Size(*decoded.pixels.shape[:2])
    if found != plan.source:
        plan = plan.of_reduced(found, mirrored(header.orientation))
    pixels = apply_plan(decoded.pixels, plan, in_channels(config.background, config.color))
    sums, squares = channel_sums(pixels)
    encoded = data if _passes(data, header, plan, config) else encode(pixels, config)
    return Normalized(encoded, *plan.canvas, sums, squares, header.format, header.width, header.height)


def channel_sums(pixels: npt.NDArray[np.uint8]) -> tuple[list[int], list[int]]:
    """Exact sums, and sums of squares, of each channel of uint8 pixels of shape (height, width, channels).

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
    if config.format == JPEG and max(canvas) > LARGEST_JPEG_SIDE:
        return Reject(Reason.BAD_ASPECT, f"{text}, sides of a JPEG have at most {LARGEST_JPEG_SIDE} pixels")
    return None


def in_channels(background: tuple[int, int, int], color: str) -> tuple[int, ...]:
    """The background as pixels have it; gray by ITU-R BT.601, as everywhere."""
    if color != GRAY:
        return background
    red, green, blue = background
    return ((299 * red + 587 * green + 114 * blue + 500) // 1000,)


def _passes(data: bytes, header: Header, plan: Plan, config: NormalizeConfig) -> bool:
    """Whether the file is, byte for byte, what may be kept: it fits, and carries nothing but its picture."""
    return (
        config.pass_through
        and header.bare
        and (header.format, header.components, header.orientation) == (config.format, config.channels, 1)
        and plan.changes_nothing
        and (header.format != JPEG or is_last_scan(data, header.offset))
    )

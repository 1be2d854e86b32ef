"""Decode an image file to upright pixels in sRGB: JPEG by libjpeg-turbo, other formats by Pillow.

Samples of 16 bits become their upper 8. The samples of a JPEG of four components are taken for the inverse of the ink,
as Adobe's programs store it, whether Adobe's segment is there or not: so do Pillow, Chrome, Firefox and Safari.
Floating-point and 32-bit samples have no range that a file would tell, and are rejected rather than guessed.
"""

import numpy as np
import simplejpeg
from PIL import Image

from etl.images.config import NormalizeConfig
from etl.images.containers.jpeg import without_gaps, without_profile
from etl.images.geometry import Size
from etl.images.header import AVIF, JPEG, JPEG_2000, PNM, WEBP, Header, open_image, reject_for
from etl.images.icc import to_srgb
from etl.images.pillow_modes import bands, load_8_bits
from etl.images.resize import Pixels
from etl.images.result import Reason, Reject

GRAY = "gray"
_SPACES = {1: "GRAY", 3: "RGB", 4: "CMYK"}
TURNED = 5  # from this orientation on, rows are stored as columns
# What libjpeg warns of; the first leaves the picture as it is, for EOI follows.
_HARMLESS, _DAMAGED = "extraneous bytes before marker 0xd9", ("Corrupt JPEG data", "Premature end of JPEG file")
# Measured, of decoders that do not report a lack of memory.
_DECODER_BYTES_PER_PIXEL = {WEBP: 16, AVIF: 12, JPEG_2000: 20}
_GAP = "extraneous bytes before marker"  # possibly between header segments, where it does not change the picture
_BAD_PROFILE = "bad ICC marker"  # one of its parts is missing; the picture was not decoded then


def upright_size(header: Header) -> Size:
    """Return the size of the picture after it is turned upright."""
    return _turned(Size(header.height, header.width), header.orientation)


def _turned(size: Size, orientation: int) -> Size:
    """Return the upright size of a stored one, or the stored one of an upright one."""
    return Size(size.width, size.height) if orientation >= TURNED else size


def mirrored(orientation: int) -> tuple[bool, bool]:
    """True for rows, and for columns, whose order in the upright picture is the reverse of the stored one."""
    return orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)


def decode(data: bytes, header: Header, config: NormalizeConfig, min_size: Size) -> Pixels | Reject:
    """Decode the first picture of an image file, whose header is ``header``, with colour and background of ``config``.

    A decoder that can scale down while decoding may return a smaller picture, but not below ``min_size``. Returns uint8
    of shape (height, width, channels), C-contiguous.
    """
    try:
        if header.format == PNM and header.offset:
            pixels: Pixels | Reject = _decode_plain_pnm(data, header, config)
        elif header.format == JPEG and header.components in _SPACES:
            pixels = _decode_jpeg(data, header, config, min_size)
        else:
            pixels = _decode_by_pillow(data, header, config)
    except Exception as error:
        pixels = reject_for(error, data, header.format)
    if isinstance(pixels, Reject):
        if pixels.reason == Reason.BROKEN:  # perhaps for lack of memory, which not every decoder reports: numpy does
            np.empty(header.width * header.height * _DECODER_BYTES_PER_PIXEL.get(header.format, 0), np.uint8)
        return pixels
    return _upright(pixels, header.orientation)


def _decode_plain_pnm(data: bytes, header: Header, config: NormalizeConfig) -> Pixels | Reject:
    shape = (header.height, header.width, header.components)
    size = header.height * header.width * header.components
    if len(data) < header.offset + size:
        return Reject(Reason.TRUNCATED, f"{len(data) - header.offset} bytes of pixels, {size} were promised")
    pixels = np.frombuffer(data, np.uint8, size, header.offset).reshape(shape)
    same = header.components == config.channels
    return pixels if same else _finish(_as_image(pixels), b"", config)


def _decode_jpeg(data: bytes, header: Header, config: NormalizeConfig, min_size: Size) -> Pixels | Reject:
    space = _SPACES[header.components]
    if space == "RGB" and config.color == GRAY and not header.profile:
        space = "GRAY"
    height, width = _least_decoded(header, min_size)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, space, min_height=height, min_width=width)
    except ValueError as error:
        if _BAD_PROFILE in str(error) and len(without := without_profile(data)) < len(data):
            return _decode_jpeg(without, header, config, min_size)
        if _GAP in str(error) and len(without := without_gaps(data)) < len(data):
            return _decode_jpeg(without, header, config, min_size)
        if _HARMLESS not in str(error) and any(text in str(error) for text in _DAMAGED):
            return reject_for(error, data, JPEG)
        return _decode_by_pillow(data, header, config)
    if space == "CMYK":
        pixels = np.invert(pixels)
    if not header.profile and space == _SPACES[config.channels]:
        return pixels
    return _finish(_as_image(pixels), header.profile, config)


def _least_decoded(header: Header, min_size: Size) -> Size:
    """Return the minimum size to decode, as stored; (0, 0) for the whole size if libjpeg has no smaller one.

    It scales by eighths. Asking for a smaller size in vain takes a tenth of the time of decoding.
    """
    min_size = _turned(min_size, header.orientation)
    less = 8 * min_size.height <= 7 * header.height and 8 * min_size.width <= 7 * header.width
    return min_size if less else Size(0, 0)


def _as_image(pixels: Pixels) -> Image.Image:
    height, width, channels = pixels.shape
    return Image.frombuffer({1: "L", 3: "RGB", 4: "CMYK"}[channels], (width, height), pixels)


def _decode_by_pillow(data: bytes, header: Header, config: NormalizeConfig) -> Pixels | Reject:
    with open_image(data, header.format) as image:
        loaded = load_8_bits(image, data, header.format)
        profile = header.profile or image.info.get("icc_profile") or b""
    return loaded if isinstance(loaded, Reject) else _finish(loaded, profile, config)


def _finish(image: Image.Image, profile: bytes, config: NormalizeConfig) -> Pixels:
    """Apply palette, profile and transparency, and convert to the colours of ``config``; by bands, to save memory."""
    pixels = np.empty((image.height, image.width, config.channels), np.uint8)
    for top, band in bands(image):
        pixels[top : top + band.height] = _finish_band(band, profile, config)
    return pixels


def _finish_band(image: Image.Image, profile: bytes, config: NormalizeConfig) -> Pixels:
    alpha = None
    if image.has_transparency_data:
        image = image.convert("LA" if image.mode in ("1", "L", "LA") else "RGBA")  # gray may have a gray profile
        alpha = image.getchannel("A")
    if image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    if profile:
        image = to_srgb(image, profile)
    if alpha is not None:
        canvas = Image.new("RGB", image.size, config.background)
        canvas.paste(image, mask=alpha)
        image = canvas
    mode = "L" if config.color == GRAY else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    return np.asarray(image).reshape(image.height, image.width, len(image.getbands()))


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turn and mirror the pixels by EXIF's orientation 1 to 8 (CIPA DC-008, 4.6.5.1.6)."""
    if orientation >= TURNED:
        pixels = pixels.transpose(1, 0, 2)
    rows, columns = mirrored(orientation)
    if rows:
        pixels = pixels[::-1]
    if columns:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)

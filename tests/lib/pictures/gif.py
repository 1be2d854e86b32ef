"""GIF and WebP files of every kind, and some of what else Pillow decodes. The first frame is the picture.

Formats: GIF89a specification, sections 17 to 27 and appendix F; WebP container specification (RFC 9649).
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tests.lib.pictures import profiles
from tests.lib.pictures.base import (
    HEIGHT,
    WIDTH,
    Picture,
    Pixels,
    bands,
    content,
    good,
    gray_content,
    over_white,
    palette,
    palette_image,
    ramp,
    save,
    save_image,
)
from tests.lib.pictures.jpeg import exif, upside

_MINIMUM_CODE_SIZE = 7
_CLEAR, _END = 128, 129


def gif(
    frames: Sequence[bytes], colors: Pixels, screen: tuple[int, int] = (WIDTH, HEIGHT), background: int = 0
) -> bytes:
    """A GIF file of the blocks of frames; ``colors`` (a power of 2 of them, 3) are the global ones."""
    table_size = len(colors).bit_length() - 2
    told = struct.pack("<HHBBB", *screen, 0x80 | table_size, background, 0)
    return b"GIF89a" + told + colors.tobytes() + b"".join(frames) + b";"


def gif_frame(indices: Pixels, left: int = 0, top: int = 0, colors: Pixels | None = None) -> bytes:
    """A frame of indices below 128, with colours of its own or the global ones.

    Codes have 8 bits throughout, so they are bytes: the decoder's table is cleared before it grows to 9.
    """
    height, width = indices.shape
    flat = indices.astype(np.uint8).tobytes()
    pieces = [bytes([_CLEAR]) + flat[start : start + 100] for start in range(0, len(flat), 100)]
    codes = b"".join(pieces) + bytes([_END])
    blocks = b"".join(_sub_block(codes[start : start + 255]) for start in range(0, len(codes), 255))
    flags = 0 if colors is None else 0x80 | len(colors).bit_length() - 2
    local = b"" if colors is None else colors.tobytes()
    head = struct.pack("<BHHHHB", 0x2C, left, top, width, height, flags)
    return head + local + bytes([_MINIMUM_CODE_SIZE]) + blocks + b"\0"


def _sub_block(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def gif_extension(label: int, *blocks: bytes) -> bytes:
    return bytes([0x21, label]) + b"".join(map(_sub_block, blocks)) + b"\0"


def gif_pictures() -> Iterator[Picture]:
    """Every kind of GIF that must come out right."""
    plain = palette_image(64)
    shown = palette(64)[bands(64)]
    progressive = save_image(plain, "GIF", interlace=1)
    assert progressive.startswith(b"GIF87a")
    yield good("gif-87a-interlaced", progressive, shown)
    yield good("gif-87a", save_image(plain, "GIF", interlace=0), shown)
    gray = gray_content().astype(np.uint8)
    yield good("gif-gray", save(gray, "GIF"), gray)
    yield good("gif-256", save_image(palette_image(256), "GIF"), palette(256)[bands(256)])
    yield good("gif-2", save_image(palette_image(2), "GIF", interlace=0), palette(2)[bands(2)])
    other = palette_image(64)
    other.putpalette((255 - palette(64)).tobytes())
    for name, more in (("", {}), ("-transparent", {"transparency": 20})):
        first = shown if not more else np.where((bands(64) == 20)[..., None], np.uint8(255), shown)
        yield good(f"gif-89a{name}", save_image(plain, "GIF", comment=b"made for a test", **more), first)
        options: dict[str, Any] = {"save_all": True, "append_images": [other, plain], "duration": 40, "loop": 0}
        yield good(f"gif-animated{name}", save_image(plain, "GIF", **options, **more), first)
    yield from _gifs_by_hand(shown)
    yield good("gif-trailing", save_image(plain, "GIF") + b"what somebody left here", shown)
    for height, width in ((1, 1), (1000, 7)):
        small = (np.add.outer(np.arange(height), np.arange(width)) % 64).astype(np.uint8)
        yield good(f"gif-{width}x{height}", gif([gif_frame(small)], palette(64), (width, height)), palette(64)[small])


def _gifs_by_hand(shown: Pixels) -> Iterator[Picture]:
    frame = gif_frame(bands(64))
    yield good("gif-by-hand", gif([frame], palette(64)), shown)
    local = gif_frame(bands(64), colors=palette(64))
    yield good("gif-local-palette", gif([local], 255 - palette(64)), shown)
    extensions = gif_extension(0xFE, b"a comment") + gif_extension(0xFF, b"NETSCAPE2.0", b"\1\0\0")
    yield good("gif-extensions", gif([extensions, frame], palette(64)), shown)
    # What no frame covers is clear in browsers, whatever background the file names: section 18 lets decoders choose.
    part = bands(64)[8:32, 12:40]
    partly = np.full_like(shown, 255)
    partly[8:32, 12:40] = palette(64)[part]
    control = gif_extension(0xF9, struct.pack("<BHB", 0, 0, 0))
    for background in (0, 63):
        data = gif([control, gif_frame(part, 12, 8)], palette(64), background=background)
        yield good(f"gif-part-over-{background}", data, partly)
    clear = gif_extension(0xF9, struct.pack("<BHB", 1, 0, 20))
    shown_part = np.where((part == 20)[..., None], np.uint8(255), palette(64)[part])
    partly = partly.copy()
    partly[8:32, 12:40] = shown_part
    yield good("gif-part-transparent", gif([clear, gif_frame(part, 12, 8)], palette(64)), partly)


def webp_pictures() -> Iterator[Picture]:
    """Every kind of WebP that must come out right."""
    pixels, alpha = content(), ramp()
    rgba, over = np.dstack([pixels, alpha]), over_white(pixels, alpha)
    yield good("webp-lossy", save(pixels, "WEBP", quality=95), pixels, 3, 20)
    yield good("webp-lossless", save(pixels, "WEBP", lossless=True), pixels)
    gray = gray_content().astype(np.uint8)
    yield good("webp-gray", save(gray, "WEBP", lossless=True), gray)
    yield good("webp-alpha-lossy", save(rgba, "WEBP", quality=95), over, 3, 20)
    yield good("webp-alpha-lossless", save(rgba, "WEBP", lossless=True, exact=True), over, 1, 1)
    others = [Image.fromarray(255 - pixels), Image.fromarray(pixels)]
    animated = save(pixels, "WEBP", save_all=True, append_images=others, duration=40, lossless=True)
    yield good("webp-animated", animated, pixels)
    clear = save(rgba, "WEBP", save_all=True, append_images=others, duration=40, lossless=True, exact=True)
    yield good("webp-animated-alpha", clear, over, 1, 1)
    turned = save(upside(pixels, 6), "WEBP", lossless=True, exif=exif(6))
    yield good("webp-exif-6", turned, pixels)
    profiled = save(pixels, "WEBP", lossless=True, icc_profile=profiles.adobe_rgb())
    yield good("webp-icc-adobe", profiled, profiles.from_adobe_rgb(pixels), 1, 2)
    yield good("webp-trailing", save(pixels, "WEBP", lossless=True) + b"what somebody left here", pixels)
    partly = np.full_like(pixels, 255)
    partly[8:32, 12:36] = pixels[8:32, 12:36]
    yield good("webp-part", _webp_part(pixels[8:32, 12:36], 12, 8), partly)
    for height, width in ((1, 1), (1000, 7)):
        small = content(height, width)
        yield good(f"webp-{width}x{height}", save(small, "WEBP", lossless=True), small)


def _webp_part(pixels: Pixels, left: int, top: int) -> bytes:
    """An animation of one opaque frame that leaves some of its canvas clear: RFC 9649, sections 2.7.1.1 and 2.7.1.3."""
    height, width = pixels.shape[:2]
    sides = b"".join(each.to_bytes(3, "little") for each in (left // 2, top // 2, width - 1, height - 1, 40))
    still = save(np.ascontiguousarray(pixels), "WEBP", lossless=True)[12:]
    size = b"".join(each.to_bytes(3, "little") for each in (WIDTH - 1, HEIGHT - 1))
    chunks = [(b"VP8X", b"\2\0\0\0" + size), (b"ANIM", bytes(6)), (b"ANMF", sides + b"\0" + still)]
    body = b"WEBP" + b"".join(kind + struct.pack("<I", len(each)) + each for kind, each in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def other_pictures() -> Iterator[Picture]:
    """JPEG 2000 (ITU-T T.800, a JP2 file and a bare codestream) and AVIF: what Pillow decodes besides."""
    pixels, alpha = content(), ramp()
    yield good("jpeg2000", save(pixels, "JPEG2000"), pixels)
    yield good("jpeg2000-codestream", save(pixels, "JPEG2000", no_jp2=True), pixels)
    for name, subsampling in (("avif-444", "4:4:4"), ("avif-420", "4:2:0")):
        yield good(name, save(pixels, "AVIF", quality=95, subsampling=subsampling), pixels, 2, 12)
    translucent = save(np.dstack([pixels, alpha]), "AVIF", quality=95, subsampling="4:4:4")
    yield good("avif-alpha", translucent, over_white(pixels, alpha), 3, 20)

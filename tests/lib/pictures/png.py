"""PNG files of every kind, by hand where Pillow cannot write them.

Format: RFC 2083 (PNG 1.0): chunks in section 3.2, colour types in 4.1.1, bit packing in 2.3, Adam7 in 2.6; eXIf: PNG
1.5 extensions, and APNG: PNG third edition. A gamma (gAMA) is not applied: that of sRGB is all that is common.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin

from tests.lib.pictures import profiles
from tests.lib.pictures.base import (
    HEIGHT,
    WIDTH,
    Picture,
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

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))

Samples = npt.NDArray[Any]


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def chunks(data: bytes) -> list[bytes]:
    """The chunks of a PNG file, whole, without its signature; what is no whole chunk is the last."""
    found, position = [], len(SIGNATURE)
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big") + 12
        found.append(data[position : position + size])
        position += size
    return found


def header(width: int, height: int, depth: int, color_type: int, interlace: int = 0) -> bytes:
    """An IHDR chunk."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, interlace))


def png(samples: Samples, depth: int, color_type: int, extra: bytes = b"", *, interlaced: bool = False) -> bytes:
    """A PNG file of integer samples (height, width) or (height, width, channels); ``extra`` chunks precede its IDAT."""
    height, width = samples.shape[:2]
    passes = [samples[y::down, x::across] for x, y, across, down in _ADAM7] if interlaced else [samples]
    rows = b"".join(b"\0" + _pack(row, depth) for each in passes if each.size for row in each)
    return b"".join(
        (
            SIGNATURE,
            header(width, height, depth, color_type, int(interlaced)),
            extra,
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        )
    )


def _pack(row: Samples, depth: int) -> bytes:
    if depth == 16:
        return row.astype(">u2").tobytes()
    if depth == 8:
        return row.astype(np.uint8).tobytes()
    bits = row.reshape(-1, 1) >> np.arange(depth - 1, -1, -1) & 1
    return np.packbits(bits.astype(np.uint8)).tobytes()


def palette_chunk(colors: int) -> bytes:
    return chunk(b"PLTE", palette(colors).tobytes())


def icc_chunk(profile: bytes) -> bytes:
    return chunk(b"iCCP", b"made\0\0" + zlib.compress(profile))


def orientation_exif(orientation: int, order: str = ">") -> bytes:
    """EXIF of one tag: a TIFF header (II or MM) and an IFD."""
    mark = b"MM" if order == ">" else b"II"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    return mark + struct.pack(f"{order}HIH", 42, 8, 1) + entry + bytes(4)


def png_pictures() -> Iterator[Picture]:
    """Every kind of PNG that must come out right."""
    yield from _grays()
    yield from _palettes()
    yield from _colors()
    yield from _transparent()
    yield from _with_metadata()


def _grays() -> Iterator[Picture]:
    for depth in (1, 2, 4, 8, 16):
        levels = 1 << depth
        samples = gray_content(levels)
        pixels = np.round(samples * 255 / (levels - 1)).astype(np.uint8)
        worst = 1 if depth == 16 else 0  # the upper byte, or rounded
        yield good(f"png-gray-{depth}", png(samples, depth, GRAY), pixels, worst, worst)
        yield good(f"png-gray-{depth}-interlaced", png(samples, depth, GRAY, interlaced=True), pixels, worst, worst)


def _palettes() -> Iterator[Picture]:
    for depth in (1, 2, 4, 8):
        colors = 1 << depth
        samples = bands(colors)
        pixels = palette(colors)[samples]
        yield good(f"png-palette-{depth}", png(samples, depth, PALETTE, palette_chunk(colors)), pixels)
    interlaced = png(bands(16), 4, PALETTE, palette_chunk(16), interlaced=True)
    yield good("png-palette-4-interlaced", interlaced, palette(16)[bands(16)])
    yield good("png-palette-short", png(bands(5), 8, PALETTE, palette_chunk(5)), palette(5)[bands(5)])


def _colors() -> Iterator[Picture]:
    pixels = content()
    deep = pixels.astype(np.int64) * 257
    yield good("png-rgb", save(pixels, "PNG"), pixels)
    yield good("png-rgb-interlaced", png(pixels, 8, RGB, interlaced=True), pixels)
    yield good("png-rgb-16", png(deep, 16, RGB), pixels, 1, 1)
    yield good("png-rgb-16-interlaced", png(deep, 16, RGB, interlaced=True), pixels, 1, 1)
    yield good("png-rgb-suggested-palette", png(pixels, 8, RGB, palette_chunk(4)), pixels)
    several = chunks(save(pixels, "PNG"))
    body = several[1][8:-4]
    cut = [chunk(b"IDAT", body[start : start + 100]) for start in range(0, len(body), 100)]
    yield good("png-many-idat", SIGNATURE + b"".join([several[0], *cut, chunk(b"IDAT", b""), several[-1]]), pixels)
    for height, width in ((1, 1), (1000, 7), (7, 1000), (1, 5)):
        small = content(height, width)
        yield good(f"png-{width}x{height}", png(small, 8, RGB, interlaced=width == 5), small)


def _transparent() -> Iterator[Picture]:
    pixels, alpha = content(), ramp()
    gray = gray_content().astype(np.uint8)
    over, gray_over = over_white(pixels, alpha), over_white(gray, alpha)
    rgba = np.dstack([pixels, alpha])
    yield good("png-rgba", save(rgba, "PNG"), over, 1, 1)
    yield good("png-rgba-interlaced", png(rgba, 8, RGBA, interlaced=True), over, 1, 1)
    yield good("png-rgba-16", png(rgba.astype(np.int64) * 257, 16, RGBA), over, 2, 2)
    yield good("png-gray-alpha", png(np.dstack([gray, alpha]), 8, GRAY_ALPHA), gray_over, 1, 1)
    deep = np.dstack([gray, alpha]).astype(np.int64) * 257
    yield good("png-gray-alpha-16", png(deep, 16, GRAY_ALPHA), gray_over, 2, 2)
    opacity = np.linspace(0, 255, 16).astype(np.uint8)
    samples = bands(16)
    shown = over_white(palette(16)[samples], opacity[samples])
    translucent = palette_chunk(16) + chunk(b"tRNS", opacity.tobytes())
    yield good("png-palette-trns", png(samples, 4, PALETTE, translucent), shown, 1, 1)
    one_clear = palette_chunk(16) + chunk(b"tRNS", b"\xff\xff\0")  # as web tools write it
    clear = png(samples, 8, PALETTE, one_clear)
    shown = np.where((samples == 2)[..., None], np.uint8(255), palette(16)[samples])
    yield good("png-palette-one-clear", clear, shown)
    yield from _color_keys(pixels, gray)


def _color_keys(pixels: npt.NDArray[np.uint8], gray: npt.NDArray[np.uint8]) -> Iterator[Picture]:
    """One colour or grey level is clear: RFC 2083, section 4.2.9."""
    for depth in (2, 4, 8, 16):
        levels = 1 << depth
        samples = gray_content(levels) if depth < 16 else gray_content() * 257
        key = int(samples[HEIGHT // 3, WIDTH // 3])
        level = np.round(samples * 255 / (levels - 1)).astype(np.uint8)
        shown = np.where(samples == key, np.uint8(255), level)
        data = png(samples, depth, GRAY, chunk(b"tRNS", struct.pack(">H", key)))
        yield good(f"png-gray-{depth}-trns", data, shown, 1, 1)
    square = pixels.copy()
    square[5:15, 5:25] = (1, 2, 3)
    shown = square.copy()
    shown[5:15, 5:25] = 255
    yield good("png-rgb-trns", png(square, 8, RGB, chunk(b"tRNS", struct.pack(">3H", 1, 2, 3))), shown)
    deep = square.astype(np.int64) * 257
    key_16 = chunk(b"tRNS", struct.pack(">3H", 257, 514, 771))
    yield good("png-rgb-16-trns", png(deep, 16, RGB, key_16), shown, 1, 1)
    near = deep.copy()
    near[5:15, 5:25, 2] += 1  # another colour, though its upper bytes are the same
    yield good("png-rgb-16-trns-of-another", png(near, 16, RGB, key_16), square, 1, 1)


def _with_metadata() -> Iterator[Picture]:
    pixels = content()
    gray = gray_content().astype(np.uint8)
    gamma = chunk(b"gAMA", struct.pack(">I", 45455))
    yield good("png-gamma", png(pixels, 8, RGB, gamma), pixels)
    yield good("png-srgb-chunk", png(pixels, 8, RGB, chunk(b"sRGB", b"\0") + gamma), pixels)
    yield good("png-icc-srgb", png(pixels, 8, RGB, icc_chunk(profiles.srgb())), pixels, 1, 2)
    adobe = icc_chunk(profiles.adobe_rgb())
    converted = profiles.from_adobe_rgb(pixels)
    yield good("png-icc-adobe", png(pixels, 8, RGB, adobe), converted, 1, 2)
    yield good("png-icc-adobe-16", png(pixels.astype(np.int64) * 257, 16, RGB, adobe), converted, 1, 3)
    rgba = np.dstack([pixels, ramp()])
    yield good("png-icc-adobe-alpha", png(rgba, 8, RGBA, adobe), over_white(converted, ramp()), 1, 3)
    indexed = png(bands(16), 4, PALETTE, adobe + palette_chunk(16))
    yield good("png-icc-adobe-palette", indexed, profiles.from_adobe_rgb(palette(16)[bands(16)]), 1, 2)
    gray_icc = icc_chunk(profiles.gray_gamma())
    yield good("png-icc-gray", png(gray, 8, GRAY, gray_icc), profiles.from_gray_gamma(gray), 1, 2)
    yield good("png-icc-rgb-on-gray", png(gray, 8, GRAY, adobe), gray)  # a profile of another space: left alone
    yield good("png-icc-cmyk-on-rgb", png(pixels, 8, RGB, icc_chunk(profiles.cmyk())), pixels)
    yield good("png-icc-broken", png(pixels, 8, RGB, icc_chunk(b"no profile at all")), pixels)
    turned = np.rot90(pixels)
    yield good("png-exif-6", png(turned, 8, RGB, chunk(b"eXIf", orientation_exif(6))), pixels)
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "x" * 2000, zip=True)
    text.add_itxt("XML:com.adobe.xmp", "<x:xmpmeta xmlns:x='adobe:ns:meta/'/>")
    yield good("png-texts", save(pixels, "PNG", pnginfo=text), pixels)
    yield good("png-trailing", save(pixels, "PNG") + b"what somebody left here", pixels)
    other = Image.fromarray(255 - pixels)
    yield good("png-animated", save(pixels, "PNG", save_all=True, append_images=[other]), pixels)
    hidden = save(pixels, "PNG", save_all=True, append_images=[other], default_image=True)
    yield good("png-animated-default-image", hidden, pixels)
    yield good("png-palette-by-pillow", save_image(palette_image(64), "PNG"), palette(64)[bands(64)])

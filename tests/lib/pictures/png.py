"""PNG files of every kind, by hand where Pillow cannot write them.

Format: RFC 2083 (PNG 1.0): chunks in section 3.2, colour types in 4.1.1, bit packing in 2.3, one clear
colour in 4.2.9; eXIf: PNG 1.5 extensions; gAMA, cHRM and cICP: W3C, PNG specification, third edition, 11.3.2.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.lib.pictures import profiles
from tests.lib.pictures.base import (
    COLORS,
    GRAYS,
    TRAILING,
    Picture,
    alike,
    bands,
    content,
    good,
    gray_content,
    over_white,
    palette,
    rejects,
    save,
)

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GRAY, RGB, PALETTE = 0, 2, 3
DISPLAY_P3 = (31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000)  # 100,000ths, as in cHRM

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


def header(width: int, height: int, depth: int, color_type: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0))


def png(samples: Samples, depth: int, color_type: int, extra: bytes = b"") -> bytes:
    """A PNG file of integer samples (height, width) or (height, width, channels); ``extra`` chunks precede its IDAT."""
    height, width = samples.shape[:2]
    rows = zlib.compress(b"".join(b"\0" + packed(row, depth) for row in samples))
    return SIGNATURE + header(width, height, depth, color_type) + extra + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def packed(row: Samples, depth: int) -> bytes:
    """A row of samples, big-endian or in bits."""
    if depth % 8 == 0:
        return row.astype(f">u{depth // 8}").tobytes()
    bits = row.reshape(-1, 1) >> np.arange(depth - 1, -1, -1) & 1
    return np.packbits(bits.astype(np.uint8)).tobytes()


def orientation_exif(orientation: int, order: str = ">") -> bytes:
    """EXIF of one tag: a TIFF header (II or MM) and an IFD."""
    mark = b"MM" if order == ">" else b"II"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    return mark + struct.pack(f"{order}HIH", 42, 8, 1) + entry + bytes(4)


def icc_chunk(profile: bytes) -> bytes:
    return chunk(b"iCCP", b"made\0\0" + zlib.compress(profile))


def raw_profile(exif: bytes, keyword: bytes = b"exif", kind: bytes = b"zTXt") -> bytes:
    """A text chunk of EXIF in hexadecimal, as ImageMagick writes it."""
    text = f"\nexif\n{len(exif):8}\n{exif.hex()}\n".encode()
    body = b"\0" + zlib.compress(text) if kind == b"zTXt" else text
    return chunk(kind, b"Raw profile type " + keyword + b"\0" + body)


def xmp_packet(orientation: int) -> bytes:
    return f"<x:xmpmeta xmlns:x='adobe:ns:meta/'><tiff:Orientation>{orientation}</tiff:Orientation>".encode()


def _deep(pixels: Samples) -> Samples:
    return pixels.astype(np.int64) * 257


def _transparent() -> Iterator[Picture]:
    samples, table = bands(16), chunk(b"PLTE", palette(16).tobytes())
    opacity = np.linspace(0, 255, 16).astype(np.uint8)
    translucent = png(samples, 4, PALETTE, table + chunk(b"tRNS", opacity.tobytes()))
    yield good("png-palette-trns", translucent, over_white(palette(16)[samples], opacity[samples]), 1, 1)
    one_clear = png(samples, 8, PALETTE, table + chunk(b"tRNS", b"\xff\xff\0"))  # as web tools write it
    shown = np.where((samples == 2)[..., None], np.uint8(255), palette(16)[samples])
    yield good("png-palette-one-clear", one_clear, shown)
    for depth in (2, 8, 16):
        deep = gray_content(1 << depth) if depth < 16 else _deep(GRAYS)
        key, level = int(deep[13, 16]), np.round(deep * 255 / ((1 << depth) - 1)).astype(np.uint8)
        data = png(deep, depth, GRAY, chunk(b"tRNS", struct.pack(">H", key)))
        yield good(f"png-gray-{depth}-trns", data, np.where(deep == key, np.uint8(255), level), 1, 1)
    clear = chunk(b"tRNS", struct.pack(">H", int(GRAYS[13, 16])))
    shown = np.where(GRAYS[13, 16] == GRAYS, np.uint8(255), profiles.from_gamma(GRAYS, profiles.GRAY_GAMMA))
    with_profile = png(GRAYS, 8, GRAY, icc_chunk(profiles.gray_gamma()) + clear)
    yield good("png-gray-8-trns-icc", with_profile, shown, 1, 3)
    near_gray = png(_deep(GRAYS), 16, GRAY, chunk(b"tRNS", struct.pack(">H", int(GRAYS[13, 16]) * 257 + 1)))
    yield good("png-gray-16-trns-of-another", near_gray, GRAYS, 1, 1)
    square, shown = COLORS.copy(), COLORS.copy()
    square[5:15, 5:25], shown[5:15, 5:25] = (1, 2, 3), 255
    yield good("png-rgb-trns", png(square, 8, RGB, chunk(b"tRNS", struct.pack(">3H", 1, 2, 3))), shown)
    key_16 = chunk(b"tRNS", struct.pack(">3H", 257, 514, 771))
    yield good("png-rgb-16-trns", png(_deep(square), 16, RGB, key_16), shown, 1, 1)
    near = _deep(square)
    near[5:15, 5:25, 2] += 1  # another colour, though its upper bytes are the same
    yield good("png-rgb-16-trns-of-another", png(near, 16, RGB, key_16), square, 1, 1)


def _usual() -> Iterator[Picture]:
    """Colours and palettes, with metadata that change nothing."""
    table = chunk(b"PLTE", palette(5).tobytes())
    yield good("png-palette-5", png(bands(5), 8, PALETTE, table), palette(5)[bands(5)])
    yield good("png-5x1", png(content(1, 5), 8, RGB), content(1, 5))
    adobe = icc_chunk(profiles.adobe_rgb())
    first, data, last = chunks(save(COLORS, "PNG"))
    exif = b"Exif\0\0" + orientation_exif(6)
    cut = [chunk(b"IDAT", data[8:-4][start : start + 100]) for start in range(0, len(data) - 12, 100)]
    other: dict[str, Any] = {"save_all": True, "append_images": [Image.fromarray(255 - COLORS)]}
    files = {
        "png-rgb": save(COLORS, "PNG"),
        "png-rgb-suggested-palette": png(COLORS, 8, RGB, chunk(b"PLTE", palette(4).tobytes())),
        "png-many-idat": SIGNATURE + b"".join([first, *cut, chunk(b"IDAT", b""), last]),
        "png-icc-cmyk-on-rgb": png(COLORS, 8, RGB, icc_chunk(profiles.cmyk())),
        "png-raw-profile-6-text": png(np.rot90(COLORS), 8, RGB, raw_profile(exif, b"APP1", b"tEXt")),
        "png-text-long": png(COLORS, 8, RGB, chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2 << 20)))),
        "png-icc-wrong-crc": png(COLORS, 8, RGB, adobe[:-1] + bytes([adobe[-1] ^ 1])),
        "png-exif-wrong-crc": png(COLORS, 8, RGB, chunk(b"eXIf", orientation_exif(6))[:-1] + b"?"),
        "png-trailing": save(COLORS, "PNG") + TRAILING,
        "png-animated-default-image": save(COLORS, "PNG", default_image=True, **other),
    }
    yield from alike(COLORS, files)
    long = png(COLORS, 8, RGB, icc_chunk(profiles.SRGB + bytes(2 << 20)))
    yield good("png-icc-long", long, COLORS, 1, 1)
    yield good("png-icc-rgb-on-gray", png(GRAYS, 8, GRAY, adobe), GRAYS)  # a profile of another space: left alone


def _out_of_place() -> Iterator[Picture]:
    """Chunks that libpng does not use where they are, or of the size that they have."""
    icc, table, clear = icc_chunk(profiles.adobe_rgb()), chunk(b"PLTE", palette(16).tobytes()), chunk(b"tRNS", bytes(3))
    first, data, last = chunks(png(COLORS, 8, RGB))
    key = chunk(b"tRNS", struct.pack(">4H", *COLORS[0, 0].tolist(), 0))
    files = {"png-icc-late": SIGNATURE + first + data + icc + last, "png-rgb-trns-long": png(COLORS, 8, RGB, key)}
    files["png-gamma-long"] = png(COLORS, 8, RGB, chunk(b"gAMA", struct.pack(">IH", 100_000, 0)))
    files["png-codes-long"] = png(COLORS, 8, RGB, chunk(b"cICP", bytes([9, 16, 0, 1, 0])))
    yield from alike(COLORS, files)
    extras = {
        "icc-late": table + icc,
        "gamma-late": table + chunk(b"gAMA", struct.pack(">I", 100_000)),
        "trns-long": table + chunk(b"tRNS", bytes(17)),
        "trns-early": clear + table,
    }
    files = {f"png-palette-{name}": png(bands(16), 4, PALETTE, extra) for name, extra in extras.items()}
    yield from alike(palette(16)[bands(16)], files)


def _of_stated_colors() -> Iterator[Picture]:
    """Colours by chunks of numbers; an ICC profile or sRGB is worth more than gAMA and cHRM, and cICP most."""
    linear, p3 = chunk(b"gAMA", struct.pack(">I", 100_000)), struct.pack(">8I", *DISPLAY_P3)
    icc, srgb = icc_chunk(profiles.adobe_rgb()), chunk(b"sRGB", b"\0")
    codes = chunk(b"cICP", bytes([12, 13, 0, 1]))
    files = {
        "png-gamma-srgb-chunk": png(COLORS, 8, RGB, srgb + linear),
        "png-gamma-0": png(COLORS, 8, RGB, chunk(b"gAMA", bytes(4))),
        "png-chrm-all-0": png(COLORS, 8, RGB, chunk(b"cHRM", bytes(32))),
        "png-codes-srgb": png(COLORS, 8, RGB, chunk(b"cICP", bytes([1, 13, 0, 1])) + icc),
    }
    yield from alike(COLORS, files, 1, 1)
    files = {"png-chrm-p3": png(COLORS, 8, RGB, chunk(b"cHRM", p3)), "png-codes-p3": png(COLORS, 8, RGB, codes + icc)}
    yield from alike(profiles.from_display_p3(COLORS), files, 1, 2)
    yield good("png-gamma-icc", png(COLORS, 8, RGB, icc + linear), profiles.from_adobe_rgb(COLORS), 1, 2)
    short = chunk(b"iCCP", b"made\0\0" + zlib.compress(b"no profile at all"))
    yield good("png-gamma-icc-short", png(COLORS, 8, RGB, short + linear), profiles.from_gamma(COLORS, 1), 1, 2)
    hdr = png(COLORS, 8, RGB, chunk(b"cICP", bytes([9, 16, 0, 1])))
    yield from rejects({"png-codes-hdr": hdr}, "unsupported")


PNG_PICTURES = (_usual, _transparent, _of_stated_colors, _out_of_place)

"""BMP files of every kind, and PNM files, which IDX sources become. By hand: Pillow writes few kinds of BMP.

Formats: Microsoft, "Bitmap Storage" (BITMAPFILEHEADER, BITMAPCOREHEADER, BITMAPINFOHEADER, BITMAPV5HEADER, run-length
encoding); pbm(5), pgm(5) and ppm(5) of Netpbm.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

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
    ramp,
    save,
)

UNPACKED, RLE8, RLE4, BITFIELDS = 0, 1, 2, 3
_CORE, _INFO, _V5 = 12, 40, 124


def bmp(
    rows: Sequence[bytes],
    bits: int,
    colors: Pixels | None = None,
    *,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    compression: int = UNPACKED,
    masks: Sequence[int] = (),
) -> bytes:
    """A BMP file of rows as they are stored: from the bottom, or from the top where the height is negative.

    With a mask of alpha, the fourth, the header is of version 5; ``colors`` are (colours, 3).
    """
    body = b"".join(row + bytes(-len(row) % 4) if compression in (UNPACKED, BITFIELDS) else row for row in rows)
    entries = [] if colors is None else colors.tolist()
    table = b"".join(bytes([blue, green, red, 0]) for red, green, blue in entries)
    kind = _V5 if len(masks) == 4 else _INFO
    told = struct.pack("<IiiHHIIiiII", kind, *size, 1, bits, compression, len(body), 2835, 2835, len(entries), 0)
    told += struct.pack(f"<{len(masks)}I", *masks)
    if kind == _V5:
        told = (told + b"BGRs").ljust(_V5, b"\0")
    return _with_file_header(told + table, body)


def _with_file_header(told: bytes, body: bytes) -> bytes:
    offset = 14 + len(told)
    return struct.pack("<2sIII", b"BM", offset + len(body), 0, offset) + told + body


def _packed(samples: npt.NDArray[Any], bits: int) -> list[bytes]:
    """Rows of indices, from the bottom, so many bits each."""
    spread = samples[::-1, :, None] >> np.arange(bits - 1, -1, -1) & 1
    return [np.packbits(row.astype(np.uint8).ravel()).tobytes() for row in spread]


def _run_lengths(samples: Pixels, bits: int) -> list[bytes]:
    """Rows from the bottom in runs, ended by 0 0, the last by 0 1; a run of RLE4 alternates between two nibbles."""
    rows = []
    for row in samples[::-1].tolist():
        coded = b""
        for value, run in groupby(row):
            coded += bytes([len(list(run)), value if bits == 8 else value << 4 | value])
        rows.append(coded + b"\0\0")
    return [*rows[:-1], rows[-1][:-1] + b"\1"]


def bmp_pictures() -> Iterator[Picture]:
    """Every kind of BMP that must come out right."""
    for bits in (1, 4, 8):
        colors = 1 << bits
        indices = bands(colors)
        yield good(f"bmp-{bits}", bmp(_packed(indices, bits), bits, palette(colors)), palette(colors)[indices])
    shown = palette(16)[bands(16)]
    for name, bits, compression in (("bmp-rle8", 8, RLE8), ("bmp-rle4", 4, RLE4)):
        runs = _run_lengths(bands(16), bits)
        yield good(name, bmp(runs, bits, palette(16), compression=compression), shown)
    yield from _true_colors()
    gray = gray_content().astype(np.uint8)
    yield good("bmp-gray-by-pillow", save(gray, "BMP"), gray)
    core = struct.pack("<IHHHH", _CORE, WIDTH, HEIGHT, 1, 24)
    rows = b"".join(row[:, ::-1].tobytes() for row in content()[::-1])
    yield good("bmp-os2", _with_file_header(core, rows), content())


def _true_colors() -> Iterator[Picture]:
    pixels, alpha = content(), ramp()
    reverse = np.ascontiguousarray(pixels[..., ::-1])
    upwards = [row.tobytes() for row in reverse[::-1]]
    yield good("bmp-24", bmp(upwards, 24), pixels)
    yield good("bmp-24-top-down", bmp(upwards[::-1], 24, size=(WIDTH, -HEIGHT)), pixels)
    narrow = [row[: 7 * 3] for row in upwards]
    yield good("bmp-24-padded", bmp(narrow, 24, size=(7, HEIGHT)), pixels[:, :7])
    unused = np.dstack([reverse, np.zeros_like(alpha)])  # the fourth byte means nothing here
    yield good("bmp-32", bmp([row.tobytes() for row in unused[::-1]], 32), pixels)
    rgba = np.dstack([reverse, alpha])
    data = bmp(
        [row.tobytes() for row in rgba[::-1]],
        32,
        compression=BITFIELDS,
        masks=(0xFF0000, 0xFF00, 0xFF, 0xFF000000),
    )
    yield good("bmp-32-alpha", data, over_white(pixels, alpha), 1, 1)
    red, green, blue = (pixels[..., channel].astype(int) for channel in range(3))
    short = (red >> 3 << 11 | green >> 2 << 5 | blue >> 3).astype("<u2")
    data = bmp([row.tobytes() for row in short[::-1]], 16, compression=BITFIELDS, masks=(0xF800, 0x7E0, 0x1F))
    yield good("bmp-16-565", data, pixels, 5, 8)
    short = (red >> 3 << 10 | green >> 3 << 5 | blue >> 3).astype("<u2")
    yield good("bmp-16-555", bmp([row.tobytes() for row in short[::-1]], 16), pixels, 5, 8)


def pnm_pictures() -> Iterator[Picture]:
    """What `etl.sources` makes of IDX files, and the other kinds of it."""
    pixels, gray = content(), gray_content().astype(np.uint8)
    size = f"{WIDTH} {HEIGHT} 255\n".encode()
    yield good("pgm", b"P5 " + size + gray.tobytes(), gray)
    yield good("ppm", b"P6 " + size + pixels.tobytes(), pixels)
    commented = b"P6\n# a comment\n48 40\n# and another\n255\n"
    yield good("ppm-comments", commented + pixels.tobytes(), pixels)
    deep = (gray.astype(np.uint16) * 257).astype(">u2")
    yield good("pgm-16", b"P5 48 40 65535\n" + deep.tobytes(), gray, 1, 1)
    few = gray_content(101)
    scaled = np.round(few * 255 / 100).astype(np.uint8)
    yield good("pgm-of-100-levels", b"P5 48 40 100\n" + few.astype(np.uint8).tobytes(), scaled, 1, 1)
    text = " ".join(map(str, pixels.ravel().tolist())).encode()
    yield good("ppm-text", b"P3 " + size + text, pixels)
    black = bands(2)  # 1 is black
    bits = np.packbits(black, axis=1).tobytes()
    yield good("pbm", b"P4 48 40\n" + bits, (1 - black) * np.uint8(255))
    yield good("ppm-trailing", b"P6 " + size + pixels.tobytes() + b"what somebody left here", pixels)
    one = content(1, 1)
    yield good("ppm-1x1", b"P6 1 1 255\n" + one.tobytes(), one)

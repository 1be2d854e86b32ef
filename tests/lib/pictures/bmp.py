"""BMP files of every kind, and PNM files, which IDX sources become. By hand: Pillow writes few kinds of BMP.

Formats: Microsoft, "Bitmap Storage" (BITMAPFILEHEADER, BITMAPCOREHEADER, BITMAPINFOHEADER, BITMAPV5HEADER, run-length
encoding); pbm(5), pgm(5) and ppm(5) of Netpbm.
"""

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from tests.lib.pictures.base import (
    COLORS,
    GRAYS,
    HEIGHT,
    TRAILING,
    TRANSLUCENT,
    WIDTH,
    Picture,
    Pixels,
    alike,
    bands,
    good,
    gray_content,
    over_white,
    palette,
    rejects,
)

RLE8, RLE4, BITFIELDS = 1, 2, 3
BGR = np.ascontiguousarray(COLORS[..., ::-1])


def bmp(
    rows: Sequence[bytes],
    bits: int,
    colors: Pixels | None = None,
    *,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    compression: int = 0,
    masks: Sequence[int] = (),
    profile: bytes = b"",
) -> bytes:
    """A BMP file of rows from the top: stored so if the height is negative.

    With a mask of alpha, the fourth, or a profile the header is of version 5; ``colors`` are (colours, 3).
    """
    upwards = rows[::-1] if size[1] > 0 else rows
    body = b"".join(row + bytes(-len(row) % 4) if compression in (0, BITFIELDS) else row for row in upwards)
    table = b"".join(bytes([*color[::-1], 0]) for color in ([] if colors is None else colors.tolist()))
    kind = 124 if len(masks) == 4 or profile else 40
    head = struct.pack("<IiiHHIIiiII", kind, *size, 1, bits, compression, len(body), 2835, 2835, len(table) // 4, 0)
    head += struct.pack(f"<{len(masks)}I", *masks)
    if profile:
        embedded = struct.pack("<II", kind + len(table) + len(body), len(profile))
        return (
            with_file_header(head.ljust(56, b"\0") + b"DEBM" + bytes(52) + embedded + bytes(4) + table, body) + profile
        )
    return with_file_header((head + b"BGRs").ljust(kind, b"\0")[: max(kind, len(head))] + table, body)


def with_file_header(head: bytes, body: bytes) -> bytes:
    offset = 14 + len(head)
    return struct.pack("<2sIII", b"BM", offset + len(body), 0, offset) + head + body


def bmp_pictures() -> Iterator[Picture]:
    """BMP files that must come out right, besides those of the matrix."""
    indices = bands(16)
    ends = [b"\0\0"] * (HEIGHT - 1) + [b"\0\1"]  # of a line, and of the picture, which is at the top
    runs = [np.dstack([np.ones_like(row), row]).tobytes() for row in indices]
    nibbles = [np.dstack([np.ones_like(row), row << 4]).tobytes() for row in indices]
    files = {
        "bmp-rle8": bmp([a + b for a, b in zip(runs, ends[::-1], strict=True)], 8, palette(16), compression=RLE8),
        "bmp-rle4": bmp([a + b for a, b in zip(nibbles, ends[::-1], strict=True)], 4, palette(16), compression=RLE4),
    }
    yield from alike(palette(16)[indices], files)
    rows = [row.tobytes() for row in BGR]
    unused = np.dstack([BGR, np.zeros_like(GRAYS)])  # the fourth byte means nothing here
    mixed = [row.tobytes() for row in unused[..., [1, 2, 3, 0]]]
    core = struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, 24)
    files = {
        "bmp-24": bmp(rows, 24),
        "bmp-fields-in-any-order": bmp(mixed, 32, compression=BITFIELDS, masks=(0xFF00, 0xFF, 0xFF000000)),
        "bmp-32": bmp([row.tobytes() for row in unused], 32),
        "bmp-os2": with_file_header(core, b"".join(rows[::-1])),
    }
    yield from alike(COLORS, files)
    yield good("bmp-24-padded", bmp([row[: 7 * 3] for row in rows], 24, size=(7, HEIGHT)), COLORS[:, :7])
    masks = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    alpha = [row.tobytes() for row in TRANSLUCENT[..., [2, 1, 0, 3]]]
    yield good("bmp-32-alpha", bmp(alpha, 32, compression=BITFIELDS, masks=masks), over_white(COLORS), 1, 1)
    clear = [row.tobytes() for row in unused]
    yield good("bmp-32-alpha-0-everywhere", bmp(clear, 32, compression=BITFIELDS, masks=masks), COLORS)
    red, green, blue = COLORS.astype("<u2").transpose(2, 0, 1)
    short = [row.tobytes() for row in red >> 3 << 11 | green >> 2 << 5 | blue >> 3]
    yield good("bmp-16-565", bmp(short, 16, compression=BITFIELDS, masks=(0xF800, 0x7E0, 0x1F)), COLORS, 5, 8)
    short = [row.tobytes() for row in red >> 3 << 10 | green >> 3 << 5 | blue >> 3]
    yield good("bmp-16-555", bmp(short, 16), COLORS, 5, 8)
    yield good("bmp-300-colors", bmp([bytes(row) for row in bands(256)], 8, palette(300)), palette(300)[bands(256)])
    without_rows = bmp([*runs[:9], b"\0\1"], 8, palette(16), compression=RLE8)
    yield from rejects({"bmp-rle8-without-rows": without_rows}, "unsupported")


def pnm_pictures() -> Iterator[Picture]:
    """What `etl.sources` makes of IDX files, and the other kinds of it."""
    size = f"{WIDTH} {HEIGHT} 255\n".encode()
    files = {
        "ppm": b"P6 " + size + COLORS.tobytes(),
        "ppm-comments-end-words": b"P6#c\n48#d\n40#e\n255#f\n" + COLORS.tobytes(),  # as for netpbm
        "ppm-trailing": b"P6 " + size + COLORS.tobytes() + TRAILING,
    }
    yield from alike(COLORS, files)
    few = gray_content(101)
    shown = np.round(few * 255 / 100).astype(np.uint8)
    yield good("pgm-of-100-levels", b"P5 48 40 100\n" + few.astype(np.uint8).tobytes(), shown, 1, 1)

"""TIFF files of every kind, by Pillow and libtiff, and by hand where they cannot write them.

Format: TIFF 6.0: header and IFD in section 2, baseline tags in 8, predictor in 14, tiles in 15, extra samples in 18.
Samples of floating point or of 32 bits state no range, so no picture is right.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.lib.pictures.base import (
    ALPHA,
    COLORS,
    GRAYS,
    TRAILING,
    TRANSLUCENT,
    Picture,
    alike,
    bands,
    good,
    over_white,
    palette,
    rejects,
    save,
)
from tests.lib.pictures.jpeg import TWICE_OFF, upside
from tests.lib.pictures.png import xmp_packet

TAGS = {"width": 256, "height": 257, "bits": 258, "compression": 259, "photometric": 262, "orientation": 274}
TAGS |= {"xmp": 700, "profile": 34675, "subfile": 254, "sub_ifds": 330, "inks": 332, "dng_version": 50706}
TAGS |= {"channels": 277, "planar": 284, "predictor": 317, "colors": 320, "extra": 338, "sample_format": 339}
BLACK_IS_ZERO, RGB, INDEXED, INKS = 1, 2, 3, 5
DEFLATE = 8
TILE = 16


def tiff(
    samples: npt.NDArray[Any], photometric: int = RGB, *, order: str = "<", tiled: bool = False, **tags: Any
) -> bytes:
    """A TIFF file of one page of samples (height, width) or (height, width, channels); ``order`` is struct's.

    ``tags`` (of `TAGS`) replace those that follow from the samples. In strips of 16 rows or, ``tiled``, in tiles of
    16x16 pixels.
    """
    cube = samples.reshape(*samples.shape[:2], -1).astype(samples.dtype.newbyteorder(order))  # type: ignore[arg-type]
    height, width, channels = cube.shape
    values = {"width": width, "height": height, "channels": channels, "bits": [cube.itemsize * 8] * channels}
    values |= {"photometric": photometric, "compression": 1} | tags
    entries = {
        TAGS[name]: ("B" if isinstance(value, bytes) else "H", [value] if isinstance(value, int) else list(value))
        for name, value in values.items()
    }
    if tiled:
        cube = np.pad(cube, ((0, -height % TILE), (0, -width % TILE), (0, 0)))
        entries |= {322: ("H", [TILE]), 323: ("H", [TILE])}
    else:
        entries |= {278: ("H", [TILE])}
    across = TILE if tiled else width
    pieces = [
        plane[top : top + TILE, left : left + across].tobytes()
        for plane in (np.split(cube, channels, axis=2) if values.get("planar") == 2 else [cube])
        for top in range(0, cube.shape[0], TILE)
        for left in range(0, cube.shape[1], across)
    ]
    if values["compression"] == DEFLATE:
        pieces = list(map(zlib.compress, pieces))
    starts = [8 + sum(map(len, pieces[:number])) for number in range(len(pieces))]
    entries |= {324 if tiled else 273: ("I", starts), 325 if tiled else 279: ("I", list(map(len, pieces)))}
    body = b"".join(pieces)
    directory = struct.pack(f"{order}H", len(entries))
    for tag, (letter, numbers) in sorted(entries.items()):
        packed = struct.pack(f"{order}{len(numbers)}{letter}", *numbers)
        if len(packed) > 4:
            body += bytes(len(body) % 2) + packed
            packed = struct.pack(f"{order}I", 8 + len(body) - len(packed))
        directory += struct.pack(f"{order}HHI", tag, {"B": 7, "H": 3, "I": 4}[letter], len(numbers))
        directory += packed.ljust(4, b"\0")
    body += bytes(len(body) % 2)
    mark = b"II" if order == "<" else b"MM"
    return mark + struct.pack(f"{order}HI", 42, 8 + len(body)) + body + directory + bytes(4)


def tiff_pictures() -> Iterator[Picture]:
    """TIFF files besides those of the matrix: that must come out right, and whose samples have no range."""
    ways = {"lzw": "tiff_lzw", "adobe-deflate": "tiff_adobe_deflate", "packbits": "packbits"}
    plain, other = tiff(COLORS), [Image.fromarray(255 - COLORS)]
    predicted = np.diff(COLORS, axis=1, prepend=np.uint8(0))
    files = {f"tiff-{name}": save(COLORS, "TIFF", compression=way) for name, way in ways.items()} | {
        "tiff-big": save(COLORS, "TIFF", big_tiff=True),
        "tiff-pages": save(COLORS, "TIFF", save_all=True, append_images=other, compression="tiff_lzw"),
        "tiff-pages-in-a-circle": plain[:-4] + plain[4:8],  # the next IFD is the first
        "tiff-little-endian": plain,
        "tiff-big-endian": tiff(COLORS, order=">"),
        "tiff-predictor": tiff(predicted, compression=DEFLATE, predictor=2),
        "tiff-trailing": plain + TRAILING,
        "tiff-rgbx": tiff(TRANSLUCENT, extra=0),  # 0: it is not alpha
    }
    files |= {f"tiff-orientation-{each}": tiff(upside(COLORS, each), orientation=each) for each in range(1, 9)}
    files |= {
        "tiff-orientation-of-bytes": tiff(upside(COLORS, 6), orientation=bytes([6])),
        "tiff-xmp-6-and-1": tiff(COLORS, xmp=xmp_packet(6), orientation=1),
    }
    yield from alike(COLORS, files)
    two = Image.fromarray(bands(2) * np.uint8(255)).convert("1")
    files = {f"tiff-1-{name}": save(two, "TIFF", compression=name) for name in ("raw", "group3", "group4")}
    yield from alike(bands(2) * np.uint8(255), files)
    yield good("tiff-jpeg", save(COLORS, "TIFF", compression="jpeg", quality=95), COLORS, *TWICE_OFF)
    colors = palette(256).T.ravel().tolist()
    yield good("tiff-palette-of-8-bits", tiff(bands(256), INDEXED, colors=colors), palette(256)[bands(256)])
    multiplied = np.round(COLORS * (ALPHA[..., None] / 255)).astype(np.uint8)
    yield good("tiff-rgba-premultiplied", tiff(np.dstack([multiplied, ALPHA]), extra=1), over_white(COLORS), 1, 1)
    files = {
        "tiff-float": tiff(GRAYS.astype(np.float32) / 255, BLACK_IS_ZERO, sample_format=3),
        "tiff-int-32": tiff(GRAYS.astype(np.int32) * 8_000_000, BLACK_IS_ZERO, sample_format=2),
        "tiff-int-8": tiff(GRAYS.view(np.int8), BLACK_IS_ZERO, sample_format=2),
        "tiff-other-inks": tiff(TRANSLUCENT, INKS, inks=2),
        "tiff-thumbnail-of-raw": tiff(COLORS, subfile=1, sub_ifds=8),
        "tiff-dng": tiff(COLORS, dng_version=[1, 4, 0, 0]),
        "tiff-subsampled-planes": tiff(COLORS, 6, planar=2),
        "tiff-webp": tiff(COLORS, compression=50001),
        "tiff-big-of-big-endian": b"MM\0+\0\x08" + bytes(10),
        "tiff-unknown-plane": tiff(TRANSLUCENT, planar=2, extra=0),
        "tiff-five-planes": tiff(np.dstack([TRANSLUCENT, ALPHA]), planar=2, extra=[2, 0]),
        "tiff-int-16": tiff(GRAYS.astype(np.int16) * 128, BLACK_IS_ZERO, sample_format=2),
    }
    yield from rejects(files, "unsupported")

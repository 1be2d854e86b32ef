"""TIFF files of every kind, by Pillow and libtiff, and by hand where they cannot write them.

Format: TIFF 6.0: header and IFD in section 2, baseline tags in 8, tiles in 15, extra samples in 18 (and the predictor
in 14). Samples of floating point or of 32 bits state no range, so no picture is right.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.lib.pictures import profiles
from tests.lib.pictures.base import (
    HEIGHT,
    WIDTH,
    Picture,
    Pixels,
    bad,
    bands,
    content,
    good,
    gray_content,
    over_white,
    palette,
    ramp,
    save,
    save_image,
)
from tests.lib.pictures.jpeg import MEAN, WORST, upside

TAGS = {
    "width": 256,
    "height": 257,
    "bits": 258,
    "compression": 259,
    "photometric": 262,
    "orientation": 274,
    "samples": 277,
    "planar": 284,
    "predictor": 317,
    "colors": 320,
    "tile_width": 322,
    "tile_height": 323,
    "extra": 338,
    "sample_format": 339,
}
_OFFSETS, _ROWS, _COUNTS, _TILE_OFFSETS, _TILE_COUNTS, _PROFILE = 273, 278, 279, 324, 325, 34675
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, INDEXED, INKS = 0, 1, 2, 3, 5
DEFLATE = 8
_SHORT, _LONG, _UNDEFINED = 3, 4, 7
TILE = 16

Samples = npt.NDArray[Any]
Tags = Mapping[str, int | Sequence[int]]


def tiff(samples: Samples, tags: Tags, *, order: str = "<", tiled: bool = False, profile: bytes = b"") -> bytes:
    """A TIFF file of one page of samples (height, width) or (height, width, channels); ``order`` is struct's.

    ``tags`` (of `TAGS`) are added to those that the samples tell: size, bits, and how many for each pixel. In strips of
    16 rows or, ``tiled``, in tiles of 16x16 pixels.
    """
    cube = samples if samples.ndim == 3 else samples[..., None]
    height, width, channels = cube.shape
    told: dict[str, Any] = {"width": width, "height": height, "samples": channels, "compression": 1}
    told |= {"bits": [cube.dtype.itemsize * 8] * channels} | dict(tags)
    pieces = [each.astype(f"{order}{each.dtype.str[1:]}").tobytes() for each in _pieces(cube, tiled, told)]
    if told["compression"] == DEFLATE:
        pieces = list(map(zlib.compress, pieces))
    if tiled:
        told |= {"tile_width": TILE, "tile_height": TILE}
    entries = {TAGS[name]: (_SHORT, [value] if isinstance(value, int) else value) for name, value in told.items()}
    starts = [8 + sum(map(len, pieces[:number])) for number in range(len(pieces))]
    entries |= {_TILE_OFFSETS if tiled else _OFFSETS: (_LONG, starts)}
    entries |= {_TILE_COUNTS if tiled else _COUNTS: (_LONG, list(map(len, pieces)))}
    entries |= {} if tiled else {_ROWS: (_SHORT, [TILE])}
    entries |= {_PROFILE: (_UNDEFINED, list(profile))} if profile else {}
    return _file(b"".join(pieces), entries, order)


def _pieces(cube: Samples, tiled: bool, told: Mapping[str, Any]) -> Iterator[Samples]:
    """The strips or tiles, plane by plane where planes are stored one after the other."""
    planes = [cube[..., each] for each in range(cube.shape[2])] if told.get("planar") == 2 else [cube]
    for plane in planes:
        for top in range(0, plane.shape[0], TILE):
            strip = plane[top : top + TILE]
            if not tiled:
                yield strip
                continue
            for left in range(0, plane.shape[1], TILE):
                tile = strip[:, left : left + TILE]
                room = ((0, TILE - tile.shape[0]), (0, TILE - tile.shape[1]), (0, 0))
                yield np.pad(tile, room[: plane.ndim])


def _file(body: bytes, entries: Mapping[int, tuple[int, Sequence[int]]], order: str) -> bytes:
    """The header, the body, the values that find no room in their entries, and the IFD."""
    body += bytes(len(body) % 2)
    directory = struct.pack(f"{order}H", len(entries))
    for tag, (kind, values) in sorted(entries.items()):
        letter = {_SHORT: "H", _LONG: "I", _UNDEFINED: "B"}[kind]
        packed = struct.pack(f"{order}{len(values)}{letter}", *values)
        if len(packed) > 4:
            offset = 8 + len(body)
            body += packed + bytes(len(packed) % 2)
            packed = struct.pack(f"{order}I", offset)
        directory += struct.pack(f"{order}HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    mark = b"II" if order == "<" else b"MM"
    return mark + struct.pack(f"{order}HI", 42, 8 + len(body)) + body + directory + bytes(4)


def tiff_pictures() -> Iterator[Picture]:
    """Every kind of TIFF: those that must come out right, and those whose samples have no range."""
    yield from _by_pillow()
    yield from _by_hand()
    yield from _deep()
    yield from _transparent()


def _by_pillow() -> Iterator[Picture]:
    pixels, gray = content(), gray_content().astype(np.uint8)
    for name, compression in {
        "raw": None,
        "lzw": "tiff_lzw",
        "deflate": "tiff_deflate",
        "adobe-deflate": "tiff_adobe_deflate",
        "packbits": "packbits",
    }.items():
        yield good(f"tiff-{name}", save(pixels, "TIFF", compression=compression), pixels)
        yield good(f"tiff-gray-{name}", save(gray, "TIFF", compression=compression), gray)
    yield good("tiff-jpeg", save(pixels, "TIFF", compression="jpeg", quality=95), pixels, 2 * MEAN, 2 * WORST)
    two = Image.fromarray(bands(2) * np.uint8(255)).convert("1")
    for name in ("raw", "group3", "group4"):
        data = save_image(two, "TIFF", compression=name)
        yield good(f"tiff-1-{name}", data, bands(2) * np.uint8(255))
    yield good("tiff-big", save(pixels, "TIFF", big_tiff=True), pixels)
    other = Image.fromarray(255 - pixels)
    for name, compression in (("tiff-pages", None), ("tiff-pages-lzw", "tiff_lzw")):
        data = save(pixels, "TIFF", save_all=True, append_images=[other], compression=compression)
        yield good(name, data, pixels)


def _by_hand() -> Iterator[Picture]:
    pixels, gray = content(), gray_content().astype(np.uint8)
    rgb = {"photometric": RGB}
    for name, order in (("little", "<"), ("big", ">")):
        yield good(f"tiff-{name}-endian", tiff(pixels, rgb, order=order), pixels)
        yield good(f"tiff-tiled-{name}-endian", tiff(pixels, rgb, order=order, tiled=True), pixels)
    deflated = tiff(pixels, rgb | {"compression": DEFLATE}, tiled=True)
    yield good("tiff-tiled-deflate", deflated, pixels)
    predicted = np.diff(pixels, axis=1, prepend=np.uint8(0))
    yield good("tiff-predictor", tiff(predicted, rgb | {"compression": DEFLATE, "predictor": 2}), pixels)
    yield good("tiff-planes", tiff(pixels, rgb | {"planar": 2}), pixels)
    yield good("tiff-white-is-zero", tiff(255 - gray, {"photometric": WHITE_IS_ZERO}), gray)
    inks = np.dstack([255 - pixels, np.zeros_like(gray)])
    yield good("tiff-cmyk", tiff(inks, {"photometric": INKS}), pixels)
    for orientation in range(1, 9):
        turned = tiff(upside(pixels, orientation), rgb | {"orientation": orientation})
        yield good(f"tiff-orientation-{orientation}", turned, pixels)
    colors = palette(256).astype(int).T.ravel() * 257
    indexed = tiff(bands(256), {"photometric": INDEXED, "colors": colors.tolist()})
    yield good("tiff-palette", indexed, palette(256)[bands(256)])
    adobe = tiff(pixels, rgb, profile=profiles.adobe_rgb())
    yield good("tiff-icc-adobe", adobe, profiles.from_adobe_rgb(pixels), 1, 2)
    plain = tiff(pixels, rgb)
    yield good("tiff-trailing", plain + b"what somebody left here", pixels)
    yield good("tiff-pages-in-a-circle", plain[:-4] + plain[4:8], pixels)  # the next IFD is the first


def _deep() -> Iterator[Picture]:
    """More than 8 bits: 16 become 8; what states no range is told apart."""
    pixels, gray = content(), gray_content().astype(np.uint8)
    deep, deep_gray = pixels.astype(np.uint16) * 257, gray.astype(np.uint16) * 257
    for name, order in (("", "<"), ("-big-endian", ">")):
        yield good(f"tiff-16{name}", tiff(deep, {"photometric": RGB}, order=order), pixels, 1, 1)
        data = tiff(deep_gray, {"photometric": BLACK_IS_ZERO}, order=order)
        yield good(f"tiff-gray-16{name}", data, gray, 1, 1)
    white = tiff(65535 - deep_gray, {"photometric": WHITE_IS_ZERO})
    yield good("tiff-gray-16-white-is-zero", white, gray, 1, 1)
    for name, samples, kind in (
        ("tiff-float", gray.astype(np.float32) / 255, 3),
        ("tiff-int-32", gray.astype(np.int32) * 8_000_000, 2),
        ("tiff-int-16", gray.astype(np.int16) * 128, 2),
    ):
        yield bad(name, tiff(samples, {"photometric": BLACK_IS_ZERO, "sample_format": kind}), "unsupported")


def _transparent() -> Iterator[Picture]:
    pixels, alpha = content(), ramp()
    over = over_white(pixels, alpha)
    tags = {"photometric": RGB}
    yield good("tiff-rgba", tiff(np.dstack([pixels, alpha]), tags | {"extra": 2}), over, 1, 1)
    multiplied = _multiplied(pixels, alpha)
    yield good("tiff-rgba-premultiplied", tiff(np.dstack([multiplied, alpha]), tags | {"extra": 1}), over, 1, 2)
    yield good("tiff-rgbx", tiff(np.dstack([pixels, alpha]), tags | {"extra": 0}), pixels)  # 0: it is not alpha


def _multiplied(pixels: Pixels, alpha: Pixels) -> Pixels:
    return np.round(pixels * (alpha[..., None] / 255)).astype(np.uint8)


assert HEIGHT % TILE and not WIDTH % TILE, "tiles are to reach over an edge"

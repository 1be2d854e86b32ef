"""The matrix of image files: format, colours, bits of a sample, layout, profile and orientation, with the outcome.

`TABLE` is the matrix: a row stands for every combination of its words. Every cell is a file that is written here, whose
picture is either right or a reject with the row's reason.
"""

import struct
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.lib.pictures import profiles
from tests.lib.pictures.base import ALPHA, COLORS, Picture, Pixels, bands, good, gray_content, over_white, palette, save
from tests.lib.pictures.jpeg import exif, upside
from tests.lib.pictures.png import chunk, icc_chunk, orientation_exif, packed, png, raw_profile, xmp_packet
from tests.lib.pictures.rasters import BITFIELDS, DEFLATE, bmp, tiff, with_jp2_profile

TABLE = """
format | colours                   | bits            | layouts                     | profiles             | orientations         | outcome
png    | gray gray-alpha rgb       | 16              | plain                       | none icc gamma codes | none exif text xmp   | good
png    | rgb-alpha                 | 8 16            | plain                       | none icc gamma codes | none exif text xmp   | good
png    | gray-alpha rgb            | 8               | plain                       | none icc gamma codes | none exif text xmp   | good
png    | gray palette              | 1 2 4 8         | plain                       | none icc gamma codes | none exif text xmp   | good
tiff   | gray white-is-zero        | 1 2 4 8         | little big planes           | none icc             | none tag xmp         | good
tiff   | gray                      | 16              | little big planes           | none icc             | none tag xmp         | good
tiff   | white-is-zero             | 16              | little planes               | none icc             | none tag xmp         | good
tiff   | white-is-zero             | 16              | big                         | none icc             | none tag xmp         | unsupported
tiff   | gray                      | 12              | little planes               | none icc             | none tag xmp         | good
tiff   | gray                      | 12              | big                         | none icc             | none tag xmp         | unsupported
tiff   | white-is-zero             | 12              | little big planes           | none icc             | none tag xmp         | unsupported
tiff   | gray white-is-zero        | 8 16            | tiles tiled-planes deflate  | none icc             | none tag xmp         | good
tiff   | gray white-is-zero        | 32              | little big planes           | none icc             | none tag xmp         | unsupported
tiff   | gray-alpha                | 8               | little big tiles deflate    | none icc             | none tag xmp         | good
tiff   | gray-alpha                | 8 16            | planes tiled-planes         | none icc             | none tag xmp         | unsupported
tiff   | gray-alpha                | 1 2 4 16 32     | little big                  | none                 | none tag xmp         | unsupported
tiff   | palette                   | 1 2 4 8         | little big planes           | none icc             | none tag xmp         | good
tiff   | palette                   | 8               | tiles tiled-planes deflate  | none icc             | none tag xmp         | good
tiff   | palette                   | 16              | little big planes           | none                 | none tag xmp         | unsupported
tiff   | rgb rgb-alpha             | 8 16            | little big planes tiles     | none icc             | none tag xmp         | good
tiff   | rgb rgb-alpha             | 8 16            | tiled-planes deflate        | none icc             | none tag xmp         | good
tiff   | rgb rgb-alpha             | 1 2 4 12 32     | little big planes           | none                 | none tag xmp         | unsupported
tiff   | cmyk                      | 8 16            | little big planes tiles     | none                 | none tag xmp         | good
jpeg   | gray rgb                  | 8               | plain progressive           | none icc             | none exif xmp        | good
webp   | rgb rgb-alpha             | 8               | lossless                    | none icc             | none exif xmp        | good
avif   | rgb rgb-alpha             | 8               | plain                       | none icc codes       | none exif            | good
jp2    | gray gray-alpha           | 8               | plain                       | none icc             | none                 | good
jp2    | gray                      | 16              | plain                       | none icc             | none                 | good
jp2    | rgb rgb-alpha             | 8 16            | plain                       | none icc             | none                 | good
jp2    | gray                      | 8               | codestream                  | none                 | none                 | good
jp2    | gray-alpha                | 8               | codestream                  | none                 | none                 | unsupported
jp2    | rgb rgb-alpha             | 8               | codestream                  | none                 | none                 | good
bmp    | palette                   | 1 4 8           | upwards downwards           | none icc             | none                 | good
bmp    | palette                   | 2               | upwards downwards           | none icc             | none                 | unsupported
bmp    | rgb rgb-alpha             | 4 5 8           | upwards downwards           | none icc             | none                 | good
bmp    | rgb                       | 10              | upwards downwards           | none icc             | none                 | good
pnm    | gray                      | 1 8 16          | raw text                    | none                 | none                 | good
pnm    | rgb                       | 8 16            | raw text                    | none                 | none                 | good
"""  # noqa: E501
FORMATS = ("png", "tiff", "jpeg", "webp", "avif", "jp2", "bmp", "pnm")
_OFF = {"jpeg": (2.4, 18), "avif": (3.0, 32)}  # grey levels that a lossy format may cost: the mean, the worst
_EXACT = (1.2, 6)
TURN = 6


class Cell(NamedTuple):
    format: str
    colors: str
    bits: int
    layout: str
    profile: str
    orientation: str
    outcome: str


def cells(format: str) -> Iterator[Cell]:
    """The cells of one of `FORMATS`."""
    for line in TABLE.strip().splitlines()[1:]:
        found, *axes, outcome = (each.split() for each in line.split("|"))
        if found == [format]:
            for colors, bits, *others in product(*axes):
                yield Cell(format, colors, int(bits), *others, *outcome)


@cache
def matrix_of(format: str) -> list[Picture]:
    """A picture for every cell."""
    return [_picture_of(format, cell) for cell in cells(format)]


def _picture_of(format: str, cell: Cell) -> Picture:
    stored = _samples(cell.colors, cell.bits)
    data = _WRITERS[format](cell, stored if cell.orientation == "none" else upside(stored, TURN))
    name = "-".join(map(str, cell[:-1]))
    if cell.outcome == "good":
        return good(name, data, _shown(cell, stored), *_OFF.get(format, _EXACT))
    return Picture(name, data, reasons=(cell.outcome,))


def _samples(colors: str, bits: int) -> npt.NDArray[Any]:
    """Integers of so many bits, (height, width) or (height, width, channels)."""
    most = (1 << bits) - 1
    if colors == "palette":
        return bands(min(1 << bits, 256))
    if colors.startswith("rgb") or colors == "cmyk":
        found = np.round(COLORS / 255 * most).astype(np.int64)
    else:
        found = gray_content(1 << bits)
    if colors == "cmyk":
        return np.dstack([most - found, np.zeros_like(found[..., 0])])
    if colors == "white-is-zero":
        return most - found
    return np.dstack([found, np.round(ALPHA / 255 * most).astype(np.int64)]) if colors.endswith("alpha") else found


def _shown(cell: Cell, stored: npt.NDArray[Any]) -> Pixels:
    """What the samples look like."""
    most = (1 << cell.bits) - 1
    levels = np.round(stored / most * 255).astype(np.uint8)
    if cell.colors == "palette":
        levels = palette(min(1 << cell.bits, 256))[stored]
    elif cell.colors == "cmyk":
        levels = 255 - levels[..., :3]
    elif cell.colors == "white-is-zero":
        levels = 255 - levels
    alpha = levels[..., -1] if cell.colors.endswith("alpha") else None
    if alpha is not None:
        levels = levels[..., 0] if cell.colors.startswith("gray") else levels[..., :-1]
    is_gray = levels.ndim == 2
    if cell.profile == "icc":
        levels = profiles.from_gamma(levels, profiles.GRAY_GAMMA) if is_gray else profiles.from_adobe_rgb(levels)
    elif cell.profile == "gamma":
        levels = profiles.from_gamma(levels, 1)
    elif cell.profile == "codes" and not is_gray:
        levels = profiles.from_display_p3(levels)
    return levels if alpha is None else over_white(levels, alpha)


def _profile(cell: Cell) -> bytes:
    is_gray = cell.colors.startswith(("gray", "white"))
    return (profiles.gray_gamma() if is_gray else profiles.adobe_rgb()) if cell.profile == "icc" else b""


def _write_png(cell: Cell, samples: npt.NDArray[Any]) -> bytes:
    kind = {"gray": 0, "rgb": 2, "palette": 3, "gray-alpha": 4, "rgb-alpha": 6}[cell.colors]
    extra = {
        "none": b"",
        "icc": icc_chunk(_profile(cell)),
        "gamma": chunk(b"gAMA", struct.pack(">I", 100_000)),
        "codes": chunk(b"cICP", bytes([12, 13, 0, 1])),
    }[cell.profile] + {
        "none": b"",
        "exif": chunk(b"eXIf", orientation_exif(TURN)),
        "text": raw_profile(exif(TURN)),
        "xmp": chunk(b"iTXt", b"XML:com.adobe.xmp" + bytes(5) + xmp_packet(TURN)),
    }[cell.orientation]
    colors = chunk(b"PLTE", palette(1 << cell.bits).tobytes()) if kind == 3 else b""
    return png(samples, cell.bits, kind, extra + colors)


def _write_tiff(cell: Cell, samples: npt.NDArray[Any]) -> bytes:
    photometric = {"white-is-zero": 0, "gray": 1, "gray-alpha": 1, "palette": 3, "cmyk": 5}.get(cell.colors, 2)
    cube = samples.reshape(*samples.shape[:2], -1)
    width, channels = cube.shape[1:]
    planes = "planes" in cell.layout
    tags: dict[str, Any] = {"bits": [cell.bits] * channels, "width": width, "channels": channels}
    tags |= {"planar": 2} if planes else {}
    tags |= {"extra": 2} if cell.colors.endswith("alpha") else {}
    tags |= {"compression": DEFLATE} if cell.layout == "deflate" else {}
    tags |= {"profile": _profile(cell)} if cell.profile == "icc" else {}
    tags |= {"orientation": TURN} if cell.orientation == "tag" else {}
    tags |= {"xmp": xmp_packet(TURN)} if cell.orientation == "xmp" else {}
    if photometric == 3:
        colors = np.resize(palette(min(1 << cell.bits, 256)), (1 << cell.bits, 3))
        tags["colors"] = (colors.astype(int).T.ravel() * 257).tolist()
    if cell.bits in (8, 16, 32):
        cube = cube.astype(f"u{cell.bits // 8}")
    else:
        parts = np.split(cube, channels, axis=2) if planes else [cube]
        rows = [[np.frombuffer(packed(row, cell.bits), np.uint8) for row in part] for part in parts]
        cube = np.array(rows).transpose(1, 2, 0)
    order = ">" if cell.layout == "big" else "<"
    return tiff(cube, photometric, order=order, tiled=cell.layout.startswith("tile"), **tags)


def _write_bmp(cell: Cell, samples: npt.NDArray[Any]) -> bytes:
    """Of colours: bit fields of so many bits for each sample, in 16 or 32 bits."""
    height, width = samples.shape[:2]
    size = (width, height if cell.layout == "upwards" else -height)
    if cell.colors == "palette":
        rows = [packed(row, cell.bits) for row in samples]
        return bmp(rows, cell.bits, palette(1 << cell.bits), size=size, profile=_profile(cell))
    shifts = [each * cell.bits for each in (2, 1, 0, 3)[: samples.shape[2]]]
    depth = 16 if max(shifts) + cell.bits <= 16 else 32
    fields = sum(samples[..., place].astype(np.int64) << shift for place, shift in enumerate(shifts))
    rows = [row.tobytes() for row in np.asarray(fields).astype(f"<u{depth // 8}")]
    masks = [(1 << cell.bits) - 1 << shift for shift in shifts]
    return bmp(rows, depth, size=size, compression=BITFIELDS, masks=masks, profile=_profile(cell))


def _write_pnm(cell: Cell, samples: npt.NDArray[Any]) -> bytes:
    kind = {1: 1, 8: 2, 16: 2}[cell.bits] + (cell.colors == "rgb") + 3 * (cell.layout == "raw")
    most = "" if cell.bits == 1 else f" {(1 << cell.bits) - 1}"
    head = f"P{kind} {samples.shape[1]} {samples.shape[0]}{most}\n".encode()
    if cell.bits == 1:
        samples = 1 - samples
    if cell.layout == "text":
        return head + " ".join(map(str, samples.ravel().tolist())).encode() + b"\n"
    return head + b"".join(packed(row, cell.bits) for row in samples)


def _write_by_pillow(cell: Cell, samples: npt.NDArray[Any]) -> bytes:
    if cell.format == "jp2" and cell.bits > 8 and samples.ndim > 2:  # of these Pillow writes 8 bits
        blue_first = samples[..., [2, 1, 0, 3][: samples.shape[2]]].astype(np.uint16)
        data = cv2.imencode(".jp2", blue_first, [cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000])[1].tobytes()
        return with_jp2_profile(data, _profile(cell)) if cell.profile == "icc" else data
    image = Image.fromarray(samples.astype(f"u{cell.bits // 8}"))
    options: dict[str, Any] = {"icc_profile": _profile(cell)} if cell.profile == "icc" else {}
    options |= {"exif": exif(TURN)} if cell.orientation == "exif" else {}
    options |= {"xmp": xmp_packet(TURN)} if cell.orientation == "xmp" else {}
    if cell.format == "jpeg":
        return save(image, "JPEG", quality=95, subsampling=0, progressive=cell.layout == "progressive", **options)
    if cell.format == "webp":
        return save(image, "WEBP", lossless=True, exact=True, **options)
    if cell.format == "jp2":
        data = save(image, "JPEG2000", no_jp2=cell.layout == "codestream")
        return with_jp2_profile(data, _profile(cell)) if cell.profile == "icc" else data
    data = save(image, "AVIF", quality=95, subsampling="4:4:4", **options)
    codes = data.find(b"nclx") + 4
    return data[:codes] + bytes([0, 12, 0, 13]) + data[codes + 4 :] if cell.profile == "codes" else data


_WRITERS = dict.fromkeys(FORMATS, _write_by_pillow) | {
    "png": _write_png,
    "tiff": _write_tiff,
    "bmp": _write_bmp,
    "pnm": _write_pnm,
}

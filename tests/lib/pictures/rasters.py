"""BMP, PNM, GIF, WebP, TIFF, JPEG 2000 and AVIF files of every kind, by Pillow, and by hand where it cannot write them.

Formats: Microsoft, "Bitmap Storage" (BITMAPFILEHEADER, BITMAPCOREHEADER, BITMAPINFOHEADER, BITMAPV5HEADER, run-length
encoding); pgm(5) and ppm(5) of Netpbm; GIF89a specification, sections 18 to 25; RFC 9649 (containers of WebP);
ITU-T T.800 (JPEG 2000); TIFF 6.0: header and IFD in section 2, baseline tags in 8, predictor in 14, tiles in 15, extra
samples in 18. Samples of TIFF of floating point or of 32 bits state no range, so no picture is right.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.lib.pictures.base import (
    ALPHA,
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
    palette_image,
    rejects,
    save,
)
from tests.lib.pictures.jpeg import TWICE_OFF, upside
from tests.lib.pictures.png import xmp_packet

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


def _bmp_pictures() -> Iterator[Picture]:
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
    clear = [row.tobytes() for row in unused]
    yield good("bmp-32-alpha-0-everywhere", bmp(clear, 32, compression=BITFIELDS, masks=masks), COLORS)
    red, green, blue = COLORS.astype("<u2").transpose(2, 0, 1)
    short = [row.tobytes() for row in red >> 3 << 10 | green >> 3 << 5 | blue >> 3]
    yield good("bmp-16-555", bmp(short, 16), COLORS, 5, 8)
    yield good("bmp-300-colors", bmp([bytes(row) for row in bands(256)], 8, palette(300)), palette(300)[bands(256)])
    without_rows = bmp([*runs[:9], b"\0\1"], 8, palette(16), compression=RLE8)
    yield from rejects({"bmp-rle8-without-rows": without_rows}, "truncated")


def _pnm_pictures() -> Iterator[Picture]:
    """What `etl.sources` makes of IDX files, and the other kinds of it."""
    size = f"{WIDTH} {HEIGHT} 255\n".encode()
    files = {
        "ppm": b"P6 " + size + COLORS.tobytes(),
        "ppm-comment": b"P6\n# as GIMP writes it\n48 40\n255\n" + COLORS.tobytes(),
        "ppm-trailing": b"P6 " + size + COLORS.tobytes() + TRAILING,
    }
    yield from alike(COLORS, files)
    few = gray_content(101)
    shown = np.round(few * 255 / 100).astype(np.uint8)
    yield good("pgm-of-100-levels", b"P5 48 40 100\n" + few.astype(np.uint8).tobytes(), shown, 1, 1)


PART = (slice(8, 32), slice(12, 40))


def first_frame(gif: bytes) -> int:
    """Where the first frame's descriptor begins, in a file of Pillow's: after the colours and extensions."""
    return gif.index(b",", 13 + (3 << (gif[10] & 7) + 1))


def on_screen(gif: bytes, left: int, top: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    """The file with its first frame elsewhere, on a screen of another size."""
    start = first_frame(gif)
    placed = gif[10 : start + 1] + struct.pack("<HH", left, top) + gif[start + 5 :]
    return gif[:6] + struct.pack("<HH", *size) + placed


def _gif_pictures() -> Iterator[Picture]:
    """GIF files that must come out right. Pixels that no frame covers are clear, whatever background the file names."""
    plain, shown = palette_image(64), palette(64)[bands(64)]
    other = palette_image(64)
    other.putpalette((255 - palette(64)).tobytes())
    animated: dict[str, Any] = {"save_all": True, "append_images": [other, plain], "duration": 40, "loop": 0}
    files = {
        "gif-87a": save(plain, "GIF", interlace=0),
        "gif-87a-interlaced": save(plain, "GIF", interlace=1),
        "gif-animated": save(plain, "GIF", comment=b"of 89a", **animated),
        "gif-trailing": save(plain, "GIF") + TRAILING,
    }
    yield from alike(shown, files)
    clear = np.where((bands(64) == 20)[..., None], np.uint8(255), shown)
    yield good("gif-animated-transparent", save(plain, "GIF", transparency=20, **animated), clear)
    part, partly, partly_clear = palette_image(64, bands(64)[PART]), np.full_like(shown, 255), np.full_like(shown, 255)
    partly[PART], partly_clear[PART] = shown[PART], clear[PART]
    yield good("gif-part", on_screen(save(part, "GIF", background=63, comment=b"89a"), 12, 8), partly)
    yield good("gif-part-transparent", on_screen(save(part, "GIF", transparency=20), 12, 8), partly_clear)


def _webp_pictures() -> Iterator[Picture]:
    """Every kind of WebP that must come out right."""

    def lossless(pixels: np.ndarray[Any, Any] = COLORS, **options: Any) -> bytes:
        return save(pixels, "WEBP", lossless=True, exact=True, **options)

    others = [Image.fromarray(255 - COLORS), Image.fromarray(COLORS)]
    animated: dict[str, Any] = {"save_all": True, "append_images": others, "duration": 40}
    files = {"webp-lossless": lossless(), "webp-animated": lossless(**animated), "webp-trailing": lossless() + TRAILING}
    yield from alike(COLORS, files)
    yield good("webp-animated-alpha", lossless(TRANSLUCENT, **animated), over_white(COLORS), 1, 1)
    yield good("webp-lossy", save(COLORS, "WEBP", quality=95), COLORS, 3, 20)
    yield good("webp-alpha-lossy", save(TRANSLUCENT, "WEBP", quality=95), over_white(COLORS), 3, 20)
    # an animation of one opaque frame that leaves some of its canvas clear: RFC 9649, sections 2.7.1.1 and 2.7.1.3
    partly = np.full_like(COLORS, 255)
    partly[PART] = COLORS[PART]
    numbers = (12 // 2, 8 // 2, 28 - 1, 24 - 1, 40, WIDTH - 1, HEIGHT - 1)  # left, top, sides, duration; the canvas
    sides = b"".join(each.to_bytes(3, "little") for each in numbers)
    still = lossless(np.ascontiguousarray(COLORS[PART]))[12:]
    chunks = [(b"VP8X", b"\2\0\0\0" + sides[15:]), (b"ANIM", bytes(6)), (b"ANMF", sides[:15] + b"\0" + still)]
    body = b"WEBP" + b"".join(kind + struct.pack("<I", len(each)) + each for kind, each in chunks)
    yield good("webp-part", b"RIFF" + struct.pack("<I", len(body)) + body, partly)


def with_jp2_profile(data: bytes, profile: bytes) -> bytes:
    """A JP2 file whose colour specification is an ICC profile."""
    outer, start = (data.index(kind) - 4 for kind in (b"jp2h", b"colr"))
    sizes = [struct.unpack_from(">I", data, each)[0] for each in (outer, start)]
    box = struct.pack(">I4s3B", 11 + len(profile), b"colr", 2, 0, 0) + profile
    head = data[:outer] + struct.pack(">I", sizes[0] + len(box) - sizes[1]) + data[outer + 4 : start]
    return head + box + data[start + sizes[1] :]


def _other_pictures() -> Iterator[Picture]:
    """JPEG 2000 (ITU-T T.800, a JP2 file and a bare codestream) and AVIF: what Pillow decodes besides."""
    few = gray_content(16).astype(np.uint8)  # of 4 bits; the shift of level is 120 less than that of 8 bits
    shallow = save(few + np.uint8(120), "JPEG2000", no_jp2=True)
    yield good("jpeg2000-4-bits", shallow[:42] + b"\3" + shallow[43:], few * np.uint8(17))
    whole = save(COLORS, "JPEG2000")
    yield good("jpeg2000", whole, COLORS)
    thumbnail = save(gray_content(16).astype(np.uint8), "JPEG2000")  # in a box of metadata
    box, begin = struct.pack(">I4s16x", 24 + len(thumbnail), b"uuid") + thumbnail, whole.index(b"jp2c") - 4
    yield good("jpeg2000-thumbnail", whole[:begin] + box + whole[begin:], COLORS)
    translucent = save(TRANSLUCENT, "JPEG2000")
    defined = translucent.index(b"cdef") + 6
    order = [struct.pack(">3H", number, *meaning) for number, meaning in enumerate(((0, 3), (0, 2), (0, 1), (1, 0)))]
    premultiplied = translucent[: defined + 20] + b"\0\2" + translucent[defined + 22 :]
    reordered = translucent[:defined] + b"".join(order) + translucent[defined + 24 :]
    space = whole.index(b"colr") + 7
    files = {
        f"jpeg2000-space-{number}": whole[:space] + struct.pack(">I", number) + whole[space + 4 :]
        for number in (14, 17)  # CIELab, and gray of three components
    }
    files |= {"jpeg2000-premultiplied": premultiplied, "jpeg2000-reordered": reordered}
    few_bits = bytearray(save(COLORS // 16, "JPEG2000", no_jp2=True))
    few_bits[42] = 3  # of the first component 4 bits, of the others 8
    files["jpeg2000-mixed-bits"] = bytes(few_bits)
    uneven = bytearray(save(COLORS, "JPEG2000", no_jp2=True))
    uneven[11] -= 1  # of the width, which is odd then
    uneven[46] = uneven[49] = 2  # of the second and third component every other column
    deep = bytearray(save(few, "JPEG2000", no_jp2=True))
    deep[42] = 16  # for 17 bits
    files |= {"jpeg2000-uneven": bytes(uneven), "jpeg2000-deep": bytes(deep)}
    files["jpeg2000-cmyk-profile"] = with_jp2_profile(translucent, bytes(16) + b"CMYK" + bytes(108))
    header, color = whole.index(b"jp2h") - 4, whole.index(b"colr") - 4
    size = struct.pack(">I", int.from_bytes(whole[header : header + 4]) + 17)
    colors = struct.pack(">I4sHBBBBBBB", 17, b"pclr", 1, 3, 7, 7, 7, 230, 40, 30)  # one, of three columns of 8 bits
    files["jpeg2000-palette"] = whole[:header] + size + whole[header + 4 : color] + colors + whole[color:]
    yield from rejects(files, "unsupported")
    files = {f"avif-{kind}": save(COLORS, "AVIF", quality=95, subsampling=kind) for kind in ("4:4:4", "4:2:0")}
    brand = files["avif-4:2:0"]
    files |= {f"avif-{name.decode()}": brand[:8] + name + brand[12:] for name in (b"mif1", b"miaf")}
    yield from alike(COLORS, files, 2, 12)
    codes = files["avif-4:4:4"].index(b"nclx") + 4
    hdr = files["avif-4:4:4"][:codes] + bytes([0, 9, 0, 16]) + files["avif-4:4:4"][codes + 4 :]  # ITU-T H.273
    yield from rejects({"avif-codes-hdr": hdr}, "unsupported")


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


def _tiff_pictures() -> Iterator[Picture]:
    """TIFF files besides those of the matrix: that must come out right, and whose samples have no range."""
    ways = {"lzw": "tiff_lzw", "adobe-deflate": "tiff_adobe_deflate", "packbits": "packbits"}
    plain, other = tiff(COLORS), [Image.fromarray(255 - COLORS)]
    files = {f"tiff-{name}": save(COLORS, "TIFF", compression=way) for name, way in ways.items()} | {
        "tiff-big": save(COLORS, "TIFF", big_tiff=True),
        "tiff-pages": save(COLORS, "TIFF", save_all=True, append_images=other, compression="tiff_lzw"),
        "tiff-pages-in-a-circle": plain[:-4] + plain[4:8],  # the next IFD is the first
        "tiff-little-endian": plain,
        "tiff-big-endian": tiff(COLORS, order=">"),
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
        "tiff-int-8": tiff(GRAYS.view(np.int8), BLACK_IS_ZERO, sample_format=2),
        "tiff-other-inks": tiff(TRANSLUCENT, INKS, inks=2),
        "tiff-thumbnail-of-raw": tiff(COLORS, subfile=1, sub_ifds=8),
        "tiff-dng": tiff(COLORS, dng_version=[1, 4, 0, 0]),
        "tiff-subsampled-planes": tiff(COLORS, 6, planar=2),
        "tiff-webp": tiff(COLORS, compression=50001),
        "tiff-five-planes": tiff(np.dstack([TRANSLUCENT, ALPHA]), planar=2, extra=[2, 0]),
    }
    yield from rejects(files, "unsupported")


OTHER_PICTURES = (_gif_pictures, _webp_pictures, _bmp_pictures, _pnm_pictures, _tiff_pictures, _other_pictures)

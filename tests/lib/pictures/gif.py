"""GIF and WebP files of every kind, and some of what else Pillow decodes. The first frame is the picture.

Formats: GIF89a specification, sections 18 to 25; WebP container specification (RFC 9649).
"""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from tests.lib.pictures.base import (
    COLORS,
    GRAYS,
    HEIGHT,
    TRAILING,
    TRANSLUCENT,
    WIDTH,
    Picture,
    alike,
    bands,
    content,
    good,
    gray_content,
    over_white,
    palette,
    palette_image,
    rejects,
    save,
)

PART = (slice(8, 32), slice(12, 40))


def first_frame(gif: bytes) -> int:
    """Where the first frame's descriptor begins, in a file of Pillow's: after the colours and extensions."""
    return gif.index(b",", 13 + (3 << (gif[10] & 7) + 1))


def on_screen(gif: bytes, left: int, top: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    """The file with its first frame elsewhere, on a screen of another size."""
    start = first_frame(gif)
    placed = gif[10 : start + 1] + struct.pack("<HH", left, top) + gif[start + 5 :]
    return gif[:6] + struct.pack("<HH", *size) + placed


def gif_pictures() -> Iterator[Picture]:
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
    yield good("gif-gray", save(GRAYS, "GIF"), GRAYS)
    yield good("gif-2", save(palette_image(2), "GIF"), palette(2)[bands(2)])
    yield good("gif-1x1", save(palette_image(64, bands(64)[:1, :1]), "GIF"), palette(64)[bands(64)[:1, :1]])


def webp_pictures() -> Iterator[Picture]:
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
    yield good("webp-gray", lossless(GRAYS), GRAYS)
    yield good("webp-1x1", lossless(content(1, 1)), content(1, 1))
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


def other_pictures() -> Iterator[Picture]:
    """JPEG 2000 (ITU-T T.800, a JP2 file and a bare codestream) and AVIF: what Pillow decodes besides."""
    few = gray_content(16).astype(np.uint8)  # of 4 bits; the shift of level is 120 less than that of 8 bits
    shallow = save(few + np.uint8(120), "JPEG2000", no_jp2=True)
    yield good("jpeg2000-4-bits", shallow[:42] + b"\3" + shallow[43:], few * np.uint8(17))
    whole = save(COLORS, "JPEG2000")
    yield good("jpeg2000", whole, COLORS)
    translucent = save(TRANSLUCENT, "JPEG2000")
    defined = translucent.index(b"cdef") + 6
    order = [struct.pack(">3H", number, *meaning) for number, meaning in enumerate(((0, 3), (0, 2), (0, 1), (1, 0)))]
    premultiplied = translucent[: defined + 20] + b"\0\2" + translucent[defined + 22 :]
    reordered = translucent[:defined] + b"".join(order) + translucent[defined + 24 :]
    space = whole.index(b"colr") + 7
    declared_gray = whole[:space] + struct.pack(">I", 17) + whole[space + 4 :]
    files = {"jpeg2000-premultiplied": premultiplied, "jpeg2000-reordered": reordered}
    files["jpeg2000-rgb-declared-gray"] = declared_gray
    yield from rejects(files, "unsupported")
    files = {f"avif-{kind}": save(COLORS, "AVIF", quality=95, subsampling=kind) for kind in ("4:4:4", "4:2:0")}
    brand = files["avif-4:2:0"]
    files |= {f"avif-{name.decode()}": brand[:8] + name + brand[12:] for name in (b"mif1", b"miaf")}
    yield from alike(COLORS, files, 2, 12)
    codes = files["avif-4:4:4"].index(b"nclx") + 4
    hdr = files["avif-4:4:4"][:codes] + bytes([0, 9, 0, 16]) + files["avif-4:4:4"][codes + 4 :]  # ITU-T H.273
    yield from rejects({"avif-codes-hdr": hdr}, "unsupported")

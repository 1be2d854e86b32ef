"""Files that must become rejects: no images, parts of images, images that lie, and images that would cost too much.

Formats as in the modules that the good ones come from.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from tests.lib.pictures.base import HEIGHT, WIDTH, Picture, bad, bands, content, gray_content, palette, save
from tests.lib.pictures.bmp import bmp
from tests.lib.pictures.gif import gif, gif_frame
from tests.lib.pictures.jpeg import DQT, FRAMES, segments, without
from tests.lib.pictures.png import GRAY, PALETTE, RGB, SIGNATURE, chunk, chunks, header, png
from tests.lib.pictures.tiff import BLACK_IS_ZERO, tiff

HUGE = 30_000
MEGABYTE = 1 << 20
_CUT = (
    "jpeg-420",
    "jpeg-gray",
    "jpeg-progressive",
    "jpeg-restarts",
    "jpeg-cmyk-adobe",
    "jpeg-exif-8-thumbnail",
    "png-rgb",
    "png-rgb-interlaced",
    "png-gray-1",
    "png-palette-8",
    "png-rgba-16",
    "gif-87a",
    "gif-87a-interlaced",
    "webp-lossy",
    "webp-lossless",
    "webp-alpha-lossy",
    "webp-animated",
    "jpeg2000",
    "jpeg2000-codestream",
    "avif-420",
    "bmp-24",
    "bmp-rle8",
    "tiff-raw",
    "tiff-lzw",
    "tiff-adobe-deflate",
    "tiff-tiled-little-endian",
    "tiff-16-big-endian",
    "tiff-big",
    "tiff-packbits",
    "tiff-jpeg",
    "tiff-1-group4",
    "tiff-planes",
    "ppm",
    "ppm-text",
    "pbm",
)


def bad_pictures(whole: Mapping[str, bytes]) -> Iterator[Picture]:
    """Every kind of reject; ``whole`` are files by the names of their pictures."""
    yield from _no_images()
    for name in _CUT:
        for quarter in (1, 2, 3):
            yield bad(f"{name}-{quarter}-of-4", whole[name][: len(whole[name]) * quarter // 4], "truncated")
    yield from _headers_only(whole)
    yield from _jpegs()
    yield from _pngs()
    yield from _others(whole)
    yield from _too_large()
    yield from _bombs()
    yield from _odd_shapes()


def _no_images() -> Iterator[Picture]:
    yield bad("empty", b"", "empty")
    noise = np.random.default_rng(5).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    for name, data in {
        "one-byte": b"\xff",
        "few-bytes": b"\x89PN",
        "text": b"not an image at all\n" * 20,
        "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n",
        "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "pdf": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n%%EOF\n",
        # a program, not a picture: Pillow would start Ghostscript for it
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 48 40\n%%EndComments\nshowpage\n%%EOF\n",
        "zeros": bytes(5000),
        "noise": noise,
        "gzip": gzip.compress(content().tobytes(), mtime=0),
        "video": b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41" + bytes(500),
        "mail": b"Content-Type: image/jpeg\r\n\r\n" + save(content(), "JPEG"),
    }.items():
        yield bad(name, data, "not-an-image")


def _headers_only(whole: Mapping[str, bytes]) -> Iterator[Picture]:
    parts = segments(whole["jpeg-420"])
    yield bad("jpeg-without-scan", b"".join(parts[:-1]), "truncated")
    yield bad("jpeg-without-data", b"".join(parts[:-1]) + parts[-1][:14], "truncated")
    yield bad("png-header-only", whole["png-rgb"][:33], "truncated")
    yield bad("gif-header-only", whole["gif-87a"][: 13 + 3 * 64], "truncated")
    yield bad("bmp-header-only", whole["bmp-24"][:54], "truncated")
    yield bad("webp-header-only", whole["webp-lossy"][:30], "truncated")
    yield bad("tiff-header-only", whole["tiff-little-endian"][:8], "truncated")
    yield bad("ppm-header-only", whole["ppm"][:13], "truncated")
    for kind, size in {"jpeg-420": 3, "png-rgb": 8, "gif-87a": 6, "webp-lossy": 16}.items():
        yield bad(f"{kind}-signature", whole[kind][:size], "truncated", "not-an-image")


def _jpegs() -> Iterator[Picture]:
    plain = save(content(), "JPEG", quality=95)
    end = b"\xff\xd9"
    scan = len(plain) - len(segments(plain)[-1])
    # an end marker in the middle of a scan: decoders fill up with gray and only warn
    yield bad("jpeg-half-lost", plain[: (scan + len(plain)) // 2] + end, "truncated", "broken")
    progressive = save(content(), "JPEG", quality=95, progressive=True)
    last = progressive.rindex(b"\xff\xda")
    yield bad("jpeg-progressive-half-lost", progressive[: last + 30] + end, "truncated", "broken")
    yield bad("jpeg-without-tables", without(plain, DQT), "broken")
    yield bad("jpeg-end-at-once", plain[:2] + end, "truncated", "broken", "not-an-image")
    frame = next(each for each in segments(plain) if each[1] in FRAMES)
    for name, start, field in (("width", 7, b"\0\0"), ("components", 9, b"\0")):
        changed = frame[:start] + field + frame[start + len(field) :]
        yield bad(f"jpeg-zero-{name}", plain.replace(frame, changed), "broken")
    yield bad("jpeg-two-frames", plain.replace(frame, frame + frame), "broken")


def _pngs() -> Iterator[Picture]:
    samples = content()
    plain = chunks(png(samples, 8, RGB))
    for number, name in ((0, "IHDR"), (1, "IDAT")):
        parts = list(plain)
        parts[number] = parts[number][:-1] + bytes([parts[number][-1] ^ 1])
        yield bad(f"png-crc-of-{name}", SIGNATURE + b"".join(parts), "broken")
    flipped = bytearray(plain[1])
    flipped[len(flipped) // 2] ^= 4
    yield bad("png-flipped-bit", SIGNATURE + plain[0] + bytes(flipped) + plain[2], "broken")
    for name, width, height in (("width", 0, HEIGHT), ("height", WIDTH, 0)):
        yield bad(
            f"png-zero-{name}", SIGNATURE + header(width, height, 8, RGB) + plain[1] + plain[2], "broken", "too-small"
        )
    few = chunk(b"IDAT", zlib.compress(b"\0" * 600))
    yield bad("png-rows-missing", SIGNATURE + plain[0] + few + plain[2], "truncated", "broken")
    garbage = chunk(b"IDAT", b"what is no deflate stream")
    yield bad("png-no-deflate", SIGNATURE + plain[0] + garbage + plain[2], "broken")
    yield bad("png-without-data", SIGNATURE + plain[0] + plain[2], "truncated", "broken")
    yield bad("png-without-palette", png(bands(16), 4, PALETTE), "broken")
    for name, depth, color in (("depth", 3, GRAY), ("color-type", 8, 5)):
        odd = header(WIDTH, HEIGHT, depth, color)
        yield bad(f"png-unknown-{name}", SIGNATURE + odd + plain[1] + plain[2], "broken", "unsupported")


def _others(whole: Mapping[str, bytes]) -> Iterator[Picture]:
    small = bands(64)
    plain = gif([gif_frame(small)], palette(64))
    descriptor = plain.index(b",", 13 + 3 * 64)
    no_width = plain[: descriptor + 5] + b"\0\0" + plain[descriptor + 7 :]
    yield bad("gif-zero-width", no_width, "broken", "too-small")
    codes = descriptor + 12  # behind the minimum code size and the length of the first block
    yield bad("gif-code-too-large", plain[: codes + 1] + b"\xf0" + plain[codes + 2 :], "broken")
    yield bad("gif-without-frame", gif([], palette(64)), "truncated", "broken")
    zero = struct.pack("<ii", 0, HEIGHT)
    yield bad("bmp-zero-width", whole["bmp-24"][:18] + zero + whole["bmp-24"][26:], "broken", "too-small")
    far = struct.pack("<I", 1 << 30)
    yield bad("bmp-far-pixels", whole["bmp-24"][:10] + far + whole["bmp-24"][14:], "truncated", "broken")
    yield bad("tiff-zero-width", tiff(content(), {"photometric": 2, "width": 0}), "broken", "too-small")
    yield bad(
        "tiff-far-directory", whole["tiff-big-endian"][:4] + b"\x7f\xff\xff\xf0" + bytes(800), "truncated", "broken"
    )
    yield bad(
        "tiff-unknown-compression", tiff(content(), {"photometric": 2, "compression": 999}), "broken", "unsupported"
    )
    many = tiff(content(), {"photometric": 2, "samples": 60_000})  # Pillow logs of it
    yield bad("tiff-many-samples", many, "broken", "unsupported")
    yield bad("ppm-zero-width", b"P6 0 40 255\n", "broken", "too-small")
    yield bad("ppm-no-number", b"P6 wide 40 255\n" + bytes(100), "broken", "not-an-image")


def _too_large() -> Iterator[Picture]:
    """Headers that promise 900 million pixels, and little behind them."""
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    yield bad("png-huge", SIGNATURE + header(HUGE, HUGE, 8, RGB) + data + chunk(b"IEND", b""), "too-many-pixels")
    for name, progressive in (("jpeg", False), ("jpeg-progressive", True)):
        plain = save(content(), "JPEG", progressive=progressive)
        frame = next(each for each in segments(plain) if each[1] in FRAMES)
        huge = frame[:5] + struct.pack(">HH", HUGE, HUGE) + frame[9:]
        yield bad(f"{name}-huge", plain.replace(frame, huge), "too-many-pixels")
    yield bad("gif-huge", gif([gif_frame(bands(64))], palette(64), (HUGE, HUGE)), "too-many-pixels")
    yield bad("bmp-huge", bmp([bytes(100)], 24, size=(HUGE, HUGE)), "too-many-pixels")
    yield bad("bmp-huge-top-down", bmp([bytes(100)], 24, size=(HUGE, -HUGE)), "too-many-pixels")
    gray = gray_content().astype(np.uint8)
    huge_tiff = tiff(gray, {"photometric": BLACK_IS_ZERO, "width": HUGE, "height": HUGE})
    yield bad("tiff-huge", huge_tiff, "too-many-pixels")
    yield bad("ppm-huge", f"P6 {HUGE} {HUGE} 255\n".encode() + bytes(100), "too-many-pixels")
    side = (1 << 14) - 1  # the most that lossless WebP can say: RFC 9649, section 3.4
    bits = b"\x2f" + struct.pack("<I", side | side << 14) + bytes(20)
    body = b"WEBPVP8L" + struct.pack("<I", len(bits)) + bits + bytes(len(bits) % 2)
    yield bad("webp-huge", b"RIFF" + struct.pack("<I", len(body)) + body, "too-many-pixels")


def _bombs() -> Iterator[Picture]:
    """Small files that grow."""
    side = 16_000
    rows = zlib.compress(bytes((1 + side // 8) * side), level=1)
    whole = SIGNATURE + header(side, side, 1, GRAY) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    yield bad("png-bomb", whole, "too-many-pixels")
    grown = zlib.compress(bytes(32 * MEGABYTE), level=1)
    text = chunk(b"zTXt", b"Comment\0\0" + grown)
    yield bad("png-text-bomb", png(content(), 8, RGB, text), "broken", "too-many-bytes")
    profile = chunk(b"iCCP", b"made\0\0" + grown)
    yield bad("png-profile-bomb", png(content(), 8, RGB, profile), "broken", "too-many-bytes")
    dot = gif_frame(bands(64)[:1, :1])
    yield bad("gif-many-frames", gif([dot] * 100_000, palette(64)), "too-many-frames")


def _odd_shapes() -> Iterator[Picture]:
    line = np.zeros((1, 30_000), np.uint8)
    yield bad("png-line", save(line, "PNG"), "bad-aspect")
    yield bad("jpeg-line", save(line, "JPEG"), "bad-aspect")
    yield bad("jpeg-upright-line", save(line.T, "JPEG"), "bad-aspect")

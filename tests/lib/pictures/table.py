"""The table of image files: every kind that real image sets contain, small, the same in every run.

The good ones come from the modules of their formats; here are those that must become rejects: no images, parts of
images, images that lie, and images that would cost too much.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain

import numpy as np

from tests.lib.pictures.base import COLORS, GRAYS, HEIGHT, WIDTH, Picture, bands, palette_image, rejects, save
from tests.lib.pictures.jpeg import DQT, JPEG_PICTURES, frame_of, jpeg, segments, without
from tests.lib.pictures.png import GRAY, PALETTE, PNG_PICTURES, RGB, SIGNATURE, chunk, chunks, header, png
from tests.lib.pictures.rasters import BITFIELDS, BLACK_IS_ZERO, OTHER_PICTURES, bmp, first_frame, on_screen, tiff


@cache
def pictures() -> dict[str, Picture]:
    """All pictures, by name."""
    made = [picture for make in (*JPEG_PICTURES, *PNG_PICTURES, *OTHER_PICTURES) for picture in make()]
    whole = {picture.name: picture.data for picture in made}
    bad = chain(_no_images(), _cut(whole), _jpegs(), _pngs(), _others(whole), _too_much())
    return {picture.name: picture for picture in (*made, *bad)}


HUGE = 30_000
END = b"\xff\xd9"
CUT = """
jpeg-420 jpeg-progressive jpeg-cmyk-adobe jpeg-exif-8-thumbnail png-rgb png-palette-5 gif-87a-interlaced
webp-lossy webp-animated bmp-24 bmp-rle8 tiff-big ppm
"""
CUT_WITHOUT_WORD = "jpeg2000 avif-4:2:0 tiff-lzw tiff-jpeg tiff-1-group4"  # of that, in what their decoders say


def _no_images() -> Iterator[Picture]:
    yield from rejects({"empty": b""}, "empty")
    files = {
        "one-byte": b"\xff",
        "bmp-in-words": b"BM is how this begins",
        "text": b"not an image at all\n" * 20,
        "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n",
        # a program, not a picture: Pillow would start Ghostscript for it
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 48 40\n%%EndComments\nshowpage\n%%EOF\n",
        "noise": np.random.default_rng(5).integers(0, 256, 5000, dtype=np.uint8).tobytes(),
        "video": b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41" + bytes(500),
        "brand-of-others": b"\0\0\0\x14ftypqt  \0\0\0\0qt  avif",  # not a brand: the box has ended
    }
    yield from rejects(files, "not-an-image")
    files = {
        "heic": b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + bytes(500),
        "heif": b"\0\0\0\x18ftypmif1\0\0\0\0mif1miaf" + bytes(500),
        "jpeg-xl": b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(500),
        "jpeg-xl-codestream": b"\xff\x0a" + bytes(500),
        "jpeg-ls": b"\xff\xd8\xff\xf7\0\x0b\x08\0\1\0\1\1\1\x11\0" + bytes(500),
    }
    yield from rejects(files, "unsupported")


def _cut(whole: Mapping[str, bytes]) -> Iterator[Picture]:
    for names, *reasons in ((CUT, "truncated"), (CUT_WITHOUT_WORD, "truncated", "broken")):
        each = [(name, n) for name in names.split() for n in (1, 2, 3)]
        yield from rejects({f"{name}-{n}-of-4": whole[name][: len(whole[name]) * n // 4] for name, n in each}, *reasons)
    parts = segments(whole["jpeg-420"])
    files = {"jpeg-without-scan": b"".join(parts[:-1]), "jpeg-without-data": b"".join(parts[:-1]) + parts[-1][:14]}
    files["jpeg-without-end"] = whole["jpeg-420"][:-2]
    sizes = {"png-rgb": 33, "bmp-24": 54, "webp-lossy": 30, "ppm": 13}
    files |= {f"{name}-header-only": whole[name][:size] for name, size in sizes.items()}
    yield from rejects(files, "truncated")
    sizes = {"jpeg-420": 3, "png-rgb": 8, "gif-87a": 6, "webp-lossy": 16, "tiff-little-endian": 8}
    files = {f"{name}-signature": whole[name][:size] for name, size in sizes.items()}
    yield from rejects(files, "truncated", "not-an-image", "broken")


def _jpegs() -> Iterator[Picture]:
    plain, progressive = jpeg(), jpeg(progressive=True)
    frame, scan = frame_of(plain), len(plain) - len(segments(plain)[-1])
    middle = (scan + len(plain)) // 2
    files = {  # an end marker in the middle of a scan: decoders fill up with gray and only warn
        "jpeg-half-lost": plain[:middle] + END,
        "jpeg-progressive-half-lost": progressive[: progressive.rindex(b"\xff\xda") + 30] + END,
    }
    yield from rejects(files, "truncated", "broken")
    files = {
        "jpeg-marker-in-data": plain[:middle] + b"\xff\xd3" + plain[middle + 2 :],  # Pillow does not notice
        "jpeg-without-tables": without(plain, DQT),
        "jpeg-zero-width": plain.replace(frame, frame[:7] + b"\0\0" + frame[9:]),
        "jpeg-zero-components": plain.replace(frame, frame[:9] + b"\0" + frame[10:]),
        "jpeg-two-frames": plain.replace(frame, frame + frame),
    }
    yield from rejects(files, "broken")
    yield from rejects({"jpeg-end-at-once": plain[:2] + END}, "broken", "not-an-image")


def _pngs() -> Iterator[Picture]:
    first, data, last = chunks(png(COLORS, 8, RGB))

    def with_parts(first: bytes = first, data: bytes = data) -> bytes:
        return SIGNATURE + first + data + last

    def flipped(part: bytes, position: int) -> bytes:
        return part[:position] + bytes([part[position] ^ 4]) + part[position + 1 :]

    grown = zlib.compress(bytes(32 << 20), level=1)
    files = {
        "png-crc-of-IHDR": with_parts(first=flipped(first, len(first) - 1)),
        "png-crc-of-IDAT": with_parts(data=flipped(data, len(data) - 1)),
        "png-no-deflate": with_parts(data=chunk(b"IDAT", b"what is no deflate stream")),
        "png-without-palette": png(bands(16), 4, PALETTE),
    }
    yield from rejects(files, "broken")
    files = {"png-zero-width": with_parts(header(0, HEIGHT, 8, RGB))}
    yield from rejects(files, "broken", "too-small")
    few_rows = chunk(b"IDAT", zlib.compress(b"\0" * 600))
    files = {"png-rows-missing": with_parts(data=few_rows), "png-without-data": with_parts(data=b"")}
    yield from rejects(files, "truncated", "broken")
    files = {"png-unknown-color-type": with_parts(header(WIDTH, HEIGHT, 8, 5))}
    yield from rejects(files, "broken", "unsupported")
    yield from rejects({"png-profile-bomb": png(COLORS, 8, RGB, chunk(b"iCCP", b"made\0\0" + grown))}, "unsupported")
    damaged = flipped(chunk(b"tRNS", bytes(6)), 9)
    yield from rejects({"png-crc-of-tRNS": png(COLORS, 8, RGB, damaged)}, "broken")


def _others(whole: Mapping[str, bytes]) -> Iterator[Picture]:
    gif, plain_bmp = whole["gif-87a"], whole["bmp-24"]
    frame = first_frame(gif)
    files = {
        "gif-zero-width": gif[: frame + 5] + b"\0\0" + gif[frame + 7 :],
        "bmp-zero-width": plain_bmp[:18] + struct.pack("<ii", 0, HEIGHT) + plain_bmp[26:],
        "tiff-zero-width": tiff(COLORS, width=0),
        "ppm-zero-width": b"P6 0 40 255\n",
    }
    yield from rejects(files, "broken", "too-small")
    codes = frame + 12  # behind the minimum code size and the length of the first block
    yield from rejects({"gif-code-too-large": gif[: codes + 1] + b"\xf0" + gif[codes + 2 :]}, "broken")
    many = struct.pack("<I", 1 << 30)
    colors = plain_bmp[:28] + b"\x08" + plain_bmp[29:46] + many + plain_bmp[50:]
    yield from rejects({"bmp-colours": colors}, "broken", "unsupported")
    files = {
        "gif-without-frame": gif[:frame] + b";",
        "bmp-far-pixels": plain_bmp[:10] + struct.pack("<I", 1 << 30) + plain_bmp[14:],
        "tiff-far-directory": whole["tiff-big-endian"][:4] + b"\x7f\xff\xff\xf0" + bytes(800),
    }
    yield from rejects(files, "truncated", "broken")
    files = {  # whole, of samples or a compression that Pillow does not know
        "tiff-gray-half": tiff(GRAYS.astype(np.float16), BLACK_IS_ZERO, sample_format=3),
        "tiff-five-channels": tiff(np.dstack([COLORS, GRAYS, GRAYS]), extra=0),
        "tiff-unknown-compression": tiff(COLORS, compression=999),
        "bmp-masks-with-gaps": bmp([bytes(4 * WIDTH)] * HEIGHT, 32, compression=BITFIELDS, masks=(5, 0xFF0000, 0xFC00)),
    }
    yield from rejects(files, "unsupported")
    many_samples = tiff(COLORS, channels=60_000)  # Pillow logs of it
    yield from rejects({"tiff-many-samples": many_samples}, "broken", "unsupported")
    yield from rejects({"ppm-no-number": b"P6 wide 40 255\n" + bytes(100)}, "broken", "not-an-image")


def _too_much() -> Iterator[Picture]:
    """Headers that promise 900 million pixels, and little behind them; small files that grow; lines."""
    end, size = chunk(b"IEND", b""), struct.pack(">HH", HUGE, HUGE)
    side = 16_000
    rows = zlib.compress(bytes((1 + side // 8) * side), level=1)
    longest = (1 << 14) - 1  # the most that a header of lossless WebP can say: RFC 9649, section 3.4
    bits = b"\x2f" + struct.pack("<I", longest | longest << 14) + bytes(21)
    body = b"WEBPVP8L" + struct.pack("<I", 25) + bits
    gif = save(palette_image(64), "GIF")
    files = {
        "png-huge": SIGNATURE + header(HUGE, HUGE, 8, RGB) + chunk(b"IDAT", zlib.compress(bytes(1000))) + end,
        "png-bomb": SIGNATURE + header(side, side, 1, GRAY) + chunk(b"IDAT", rows) + end,
        "gif-huge": on_screen(gif, 0, 0, (HUGE, HUGE)),
        "bmp-huge": bmp([bytes(100)], 24, size=(HUGE, HUGE)),
        "bmp-huge-top-down": bmp([bytes(100)], 24, size=(HUGE, -HUGE)),
        "tiff-huge": tiff(GRAYS, BLACK_IS_ZERO, width=HUGE, height=HUGE),
        "ppm-huge": f"P6 {HUGE} {HUGE} 255\n".encode() + bytes(100),
        "webp-huge": b"RIFF" + struct.pack("<I", len(body)) + body,
    }
    frame = frame_of(jpeg())
    files["jpeg-huge"] = jpeg().replace(frame, frame[:5] + size + frame[9:])
    yield from rejects(files, "too-many-pixels")
    dot = save(palette_image(2, bands(2)[:1, :1]), "GIF")
    start = first_frame(dot)
    yield from rejects({"gif-many-frames": dot[:start] + dot[start:-1] * 100_000 + b";"}, "too-many-frames")
    line = np.zeros((1, 30_000), np.uint8)
    yield from rejects({"png-line": save(line, "PNG"), "jpeg-line": save(line.T, "JPEG")}, "bad-aspect")

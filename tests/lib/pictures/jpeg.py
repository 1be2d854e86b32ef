"""JPEG files of every kind, by hand where Pillow cannot write them.

Format: ITU-T T.81 (markers in B.1, lossless coding in H.1), JFIF 1.02, EXIF 2.32 (orientation as in TIFF 6.0), ICC.1
annex B.4, and Adobe's marker APP14 in ITU-T T.872, section 6.5.3.
"""

import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from tests.lib.pictures import profiles
from tests.lib.pictures.base import (
    ALPHA,
    COLORS,
    GRAYS,
    HEIGHT,
    WIDTH,
    Picture,
    Pixels,
    alike,
    content,
    good,
    rejects,
    save,
)
from tests.lib.pictures.png import orientation_exif, xmp_packet

SOF0, SOF1, SOF2, SOF3 = FRAMES = (0xC0, 0xC1, 0xC2, 0xC3)
DHT, SOS, DQT, APP0, APP1, APP2, APP14 = 0xC4, 0xDA, 0xDB, 0xE0, 0xE1, 0xE2, 0xEE

FINE: dict[str, Any] = {"quality": 95, "subsampling": 0}
OFF, TWICE_OFF = (1.2, 9), (2.4, 18)  # grey levels that quality 95 may cost: the mean, the worst


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def segments(data: bytes) -> list[bytes]:
    """What a JPEG file consists of: SOI, a segment each up to SOS, and from there the rest as one."""
    found, position = [data[:2]], 2
    while position + 4 <= len(data) and data[position + 1] != SOS:
        size = 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        found.append(data[position : position + size])
        position += size
    return [*found, data[position:]]


def frame_of(data: bytes) -> bytes:
    return next(each for each in segments(data) if each[1] in FRAMES)


def without(data: bytes, marker: int) -> bytes:
    return b"".join(each for each in segments(data) if each[1] != marker)


def inserted(data: bytes, extra: bytes) -> bytes:
    return data[:2] + extra + data[2:]


def upside(pixels: Pixels, orientation: int) -> Pixels:
    """How pixels are stored so that this EXIF orientation brings them upright."""
    stored = np.swapaxes(pixels, 0, 1) if orientation >= 5 else pixels
    rows = -1 if orientation in (3, 4, 6, 7) else 1
    columns = -1 if orientation in (2, 3, 7, 8) else 1
    return np.ascontiguousarray(stored[::rows, ::columns])


def exif(orientation: int, order: str = ">") -> bytes:
    """The body of an APP1 segment of EXIF."""
    return b"Exif\0\0" + orientation_exif(orientation, order)


def _adobe(transform: int) -> bytes:
    return segment(APP14, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, transform))


def jpeg(pixels: Pixels = COLORS, **options: Any) -> bytes:
    return save(pixels, "JPEG", **FINE | options)


def _usual() -> Iterator[Picture]:
    plain = jpeg()
    first, *parts = segments(plain)
    other = Image.fromarray(255 - COLORS)
    files = {
        "jpeg-444": plain,
        "jpeg-420": jpeg(subsampling=2),
        "jpeg-progressive": jpeg(subsampling=2, progressive=True),
        "jpeg-unknown-segments": inserted(plain, segment(0xEB, bytes(500)) + segment(0xEF, b"\xff\xd9" * 9)),
        "jpeg-twice": plain + jpeg(255 - COLORS),
        "jpeg-junk-before-end": plain[:-2] + b"\0\1\2" + plain[-2:],
        "jpeg-stray-bytes": first + parts[0] + b"".join(b"\0\1\2\xff\0" + each for each in parts[1:]),
        "jpeg-fill-bytes": first + b"".join(b"\xff\xff\xff" + each for each in parts),
        "jpeg-mpo": save(COLORS, "MPO", save_all=True, append_images=[other], **FINE),
        "jpeg-rgb": jpeg(keep_rgb=True),  # by Adobe's marker, or the components' names; YCC by that of JFIF, or none
        "jpeg-rgb-by-names": without(jpeg(keep_rgb=True), APP14),
        "jpeg-bare": without(plain, APP0),
    }
    yield from alike(COLORS, files, *OFF)
    factors = bytearray(save(GRAYS, "JPEG", quality=95))  # of a single component they mean nothing: T.81, A.2.2
    factors[factors.index(b"\xff\xc0") + 11] = 0x22
    yield good("jpeg-gray-2x2", bytes(factors), GRAYS, *OFF)
    for height, width in ((1, 1), (1000, 7), (9, 17)):
        small = content(height, width)
        yield good(f"jpeg-{width}x{height}", jpeg(small, subsampling=2), small, 4.8, 27)


def _inks() -> Iterator[Picture]:
    """CMYK and YCCK. Those of ImageNet, 22 of them, have Adobe's marker. Pillow inverts what it writes.

    Without the marker no specification says what samples mean. Pillow, Chrome, Firefox and Safari take them for inverse
    then, too, libvips and TensorFlow do not; what people have looked at in a browser and kept is as browsers show it.
    """
    black = np.round(ALPHA * 0.4).astype(np.uint8)
    inks = np.dstack([255 - COLORS, black])
    seen = np.round(COLORS * ((255 - black[..., None].astype(float)) / 255)).astype(np.uint8)

    def ink_jpeg(inks: Pixels = inks, **options: Any) -> bytes:
        image = Image.frombytes("CMYK", inks.shape[1::-1], inks.tobytes())
        return save(image, "JPEG", **FINE | options)

    files = {"jpeg-cmyk-adobe": ink_jpeg(), "jpeg-cmyk-plain": without(ink_jpeg(), APP14)}
    yield from alike(seen, files, *OFF)
    # luminance and chrominance of the inks, and black inverted, beside Adobe's marker with transform 2
    coded = Image.fromarray(np.ascontiguousarray(inks[..., :3])).convert("YCbCr")
    stored = np.dstack([255 - np.asarray(coded), black])
    yield good("jpeg-ycck", inserted(without(ink_jpeg(stored), APP14), _adobe(2)), seen, *TWICE_OFF)
    image = Image.frombytes("CMYK", (WIDTH, HEIGHT), inks.tobytes())
    source = ImageCms.getOpenProfile(io.BytesIO(profiles.cmyk()))
    through = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    yield good("jpeg-cmyk-icc", ink_jpeg(icc_profile=profiles.cmyk()), np.asarray(through), *TWICE_OFF)


def _orientations() -> Iterator[Picture]:
    files = {f"jpeg-exif-{number}": jpeg(upside(COLORS, number), exif=exif(number)) for number in range(1, 9)}
    files["jpeg-exif-6-byte"] = jpeg(upside(COLORS, 6), exif=exif(6).replace(b"\0\3\0\0\0\1\0\6", b"\0\1\0\0\0\1\6\0"))
    files["jpeg-xmp-6-exif-1"] = jpeg(xmp=xmp_packet(6), exif=exif(1))
    files["jpeg-exif-6-little-endian"] = jpeg(upside(COLORS, 6), exif=exif(6, "<"), progressive=True)
    body = exif(8) + jpeg(np.zeros((8, 8, 3), np.uint8))  # a whole JPEG file, of another picture
    files["jpeg-exif-8-thumbnail"] = inserted(jpeg(upside(COLORS, 8)), segment(APP1, body))
    for name, body in {
        "0": exif(0),
        "cut": exif(6)[:-9],
        "no-tiff": b"Exif\0\0there is none",
        "far-ifd": b"Exif\0\0MM\0*\xff\xff\xff\xf0",
    }.items():
        files[f"jpeg-exif-{name}"] = inserted(jpeg(), segment(APP1, body))
    yield from alike(COLORS, files, *OFF)


def _with_profiles() -> Iterator[Picture]:
    adobe, plain = profiles.adobe_rgb(), jpeg()
    parts = [segment(APP2, b"ICC_PROFILE\0" + bytes([n, 2]) + half) for n, half in ((1, adobe[:300]), (2, adobe[300:]))]
    yield good("jpeg-icc-in-parts", inserted(plain, b"".join(parts)), profiles.from_adobe_rgb(COLORS), *TWICE_OFF)
    files = {
        "jpeg-icc-srgb": jpeg(icc_profile=profiles.SRGB),
        "jpeg-icc-broken": jpeg(icc_profile=b"no profile at all"),
        "jpeg-icc-part-missing": inserted(plain, parts[0]),
        "jpeg-icc-part-twice": inserted(plain, b"".join([parts[0], *parts])),
    }
    yield from alike(COLORS, files, *OFF)
    damaged = plain[:-200] + b"\xff\xd3" + plain[-198:]  # a restart in the middle of a scan
    yield from rejects({"jpeg-icc-part-missing-damaged": inserted(damaged, parts[0])}, "broken")


def lossless_jpeg(gray: Pixels) -> bytes:
    """A lossless JPEG (SOF3), which no program at hand writes, of samples of 28 and 128, 128 in the first column.

    Each is predicted from its left. A difference is coded as its category, here in one bit or two, and so many bits of
    it, less 1 if it is negative: T.81, F.1.2.1 and H.1.
    """
    codes = {0: "0", -100: "10" + "0011011", 100: "10" + "1100100"}
    bits = "".join(codes[each] for each in np.diff(gray.astype(int), axis=1, prepend=128).ravel().tolist())
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    frame = segment(SOF3, struct.pack(">BHHBBBB", 8, *gray.shape, 1, 1, 0x11, 0))
    start = segment(DHT, bytes([0, 1, 1, *bytes(14), 0, 7])) + segment(SOS, bytes([1, 1, 0, 1, 0, 0]))
    return b"\xff\xd8" + frame + start + scan + b"\xff\xd9"


def _by_hand() -> Iterator[Picture]:
    square = np.full((HEIGHT, WIDTH), 128, np.uint8)
    square[5:15, 5:25] = 28
    yield good("jpeg-lossless", lossless_jpeg(square), square)
    plain = jpeg()
    frame = frame_of(plain)
    deep = frame[:1] + bytes([SOF1]) + frame[2:4] + b"\x0c" + frame[5:]
    yield from rejects({"jpeg-12-bit": plain.replace(frame, deep)}, "unsupported")
    later = frame[:5] + b"\0\0" + frame[7:]  # the height comes in a segment DNL after the scan: T.81, B.2.5
    at_end = plain[:-2].replace(frame, later) + segment(0xDC, struct.pack(">H", HEIGHT)) + plain[-2:]
    yield from rejects({"jpeg-height-at-end": at_end}, "broken")


JPEG_PICTURES = (_usual, _inks, _orientations, _with_profiles, _by_hand)

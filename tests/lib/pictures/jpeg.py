"""JPEG files of every kind, by hand where Pillow cannot write them.

Format: ITU-T T.81 (markers in B.1, lossless coding in H.1), JFIF 1.02, EXIF 2.32 (orientation as in TIFF 6.0), ICC.1
annex B.4, and Adobe's marker APP14 in ITU-T T.872, section 6.5.3. Samples of CMYK are the inverse of the inks, beside
Adobe's marker and without it.
"""

import base64
import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

from tests.lib.pictures import profiles
from tests.lib.pictures.base import (
    HEIGHT,
    WIDTH,
    Picture,
    Pixels,
    bad,
    content,
    good,
    gray_content,
    ramp,
    save,
    save_image,
)
from tests.lib.pictures.png import orientation_exif

SOF0, SOF1, SOF2, SOF3 = FRAMES = (0xC0, 0xC1, 0xC2, 0xC3)
DHT, SOS, DQT, APP0, APP1, APP2, APP14 = 0xC4, 0xDA, 0xDB, 0xE0, 0xE1, 0xE2, 0xEE

FINE: dict[str, Any] = {"quality": 95, "subsampling": 0}
MEAN, WORST = 1.2, 9  # grey levels that quality 95 may cost

# `cjpeg -arithmetic -grayscale -quality 90` of libjpeg-turbo 2.1.5, of the luminance of the content
_ARITHMETIC = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMU"
    "FRUVDA8XGBYUGBIUFRT/yQALCAAoADABAREA/8wABgAQEAX/2gAIAQEAAD8A/wC7IU9QgMHY3N/p0/yqD/Yqase2d/IIl8rCC9mJ"
    "U+7VxElJKXI3PlNFKcFJfH/KKCyLEHL9Oq+eazBzzxknBr8xhor7aejdYE3CfDQ6Zw2YiEBOitHvrypvPNf7KxwZ+Z7k5k/Ds63o"
    "9WUQ0VT/2Q=="
)


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


def without(data: bytes, marker: int) -> bytes:
    return b"".join(each for each in segments(data) if each[1] != marker)


def inserted(data: bytes, extra: bytes) -> bytes:
    """The file with something right after its SOI."""
    return data[:2] + extra + data[2:]


def upside(pixels: Pixels, orientation: int) -> Pixels:
    """How pixels are stored so that this EXIF orientation brings them upright."""
    swapped = np.swapaxes(pixels, 0, 1)
    stored = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: swapped,
        6: swapped[::-1],
        7: swapped[::-1, ::-1],
        8: swapped[:, ::-1],
    }
    return np.ascontiguousarray(stored[orientation])


def exif(orientation: int, order: str = ">") -> bytes:
    """The body of an APP1 segment of EXIF."""
    return b"Exif\0\0" + orientation_exif(orientation, order)


def jpeg_pictures() -> Iterator[Picture]:
    """Every kind of JPEG that must come out right, and those that no decoder of 8-bit samples takes."""
    yield from _usual()
    yield from _color_spaces()
    yield from _inks()
    yield from _orientations()
    yield from _with_profiles()
    yield from _with_segments()
    yield from _by_hand()


def _usual() -> Iterator[Picture]:
    pixels, gray = content(), gray_content().astype(np.uint8)
    yield good("jpeg-gray", save(gray, "JPEG", quality=95), gray, MEAN, WORST)
    factors = bytearray(save(gray, "JPEG", quality=95))  # of a single component they mean nothing: T.81, A.2.2
    factors[factors.index(b"\xff\xc0") + 11] = 0x22
    yield good("jpeg-gray-2x2", bytes(factors), gray, MEAN, WORST)
    for name, subsampling in (("444", 0), ("422", 1), ("420", 2)):
        data = save(pixels, "JPEG", quality=95, subsampling=subsampling)
        yield good(f"jpeg-{name}", data, pixels, MEAN, WORST)
    ways: dict[str, dict[str, Any]] = {
        "progressive": {"progressive": True},
        "progressive-420": {"progressive": True, "subsampling": 2},
        "optimised": {"optimize": True},
        "restarts": {"restart_marker_blocks": 2},
        "restart-rows": {"restart_marker_rows": 1, "subsampling": 2},
        "progressive-restarts": {"progressive": True, "restart_marker_blocks": 3},
    }
    for name, options in ways.items():
        yield good(f"jpeg-{name}", save(pixels, "JPEG", **FINE | options), pixels, MEAN, WORST)
    gray_progressive = save(gray, "JPEG", quality=95, progressive=True)
    yield good("jpeg-gray-progressive", gray_progressive, gray, MEAN, WORST)
    for height, width in ((1, 1), (1000, 7), (7, 1000), (9, 17)):
        small = content(height, width)
        yield good(f"jpeg-{width}x{height}", save(small, "JPEG", **FINE), small, MEAN, WORST)
        subsampled = save(small, "JPEG", quality=95, subsampling=2)
        yield good(f"jpeg-{width}x{height}-420", subsampled, small, 4 * MEAN, 3 * WORST)


def _color_spaces() -> Iterator[Picture]:
    """By the marker of JFIF, by that of Adobe, by the components' names, as libjpeg and all others decide."""
    pixels = content()
    coded, plain = save(pixels, "JPEG", **FINE), save(pixels, "JPEG", keep_rgb=True, **FINE)
    yield good("jpeg-rgb", plain, pixels, MEAN, WORST)
    yield good("jpeg-rgb-by-names", without(plain, APP14), pixels, MEAN, WORST)
    yield good("jpeg-rgb-by-adobe", _renamed(plain), pixels, MEAN, WORST)
    bare = without(coded, APP0)
    yield good("jpeg-bare", bare, pixels, MEAN, WORST)
    yield good("jpeg-adobe-ycc", inserted(bare, _adobe(1)), pixels, MEAN, WORST)


def _renamed(data: bytes) -> bytes:
    """Components R, G, B called 1, 2, 3, in the frame's header and the scan's."""
    renamed = []
    for each in segments(data):
        body = bytearray(each)
        first, step = {SOF0: (10, 3), SOS: (5, 2)}.get(each[1], (0, 0))
        for number in range(3 if first else 0):
            body[first + step * number] = number + 1
        renamed.append(bytes(body))
    return b"".join(renamed)


def _adobe(transform: int) -> bytes:
    return segment(APP14, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, transform))


def _cmyk_content() -> tuple[Pixels, Pixels]:
    """Inks, (height, width, 4), 255 the most, and what they look like without a profile."""
    black = np.round(ramp() * 0.4).astype(np.uint8)
    inks = np.dstack([255 - content(), black])
    seen = (255 - inks[..., :3].astype(float)) * (255 - black[..., None].astype(float)) / 255
    return inks, np.round(seen).astype(np.uint8)


def _inks() -> Iterator[Picture]:
    """CMYK and YCCK. Those of ImageNet, 22 of them, have Adobe's marker. Pillow inverts what it writes.

    Without the marker no specification says what samples mean. Pillow, Chrome, Firefox and Safari take them for inverse
    then, too, libvips and TensorFlow do not; what people have looked at in a browser and kept is as browsers show it.
    """
    inks, seen = _cmyk_content()
    adobe = save(inks, "JPEG", "CMYK", **FINE)
    yield good("jpeg-cmyk-adobe", adobe, seen, MEAN, WORST)
    yield good("jpeg-cmyk-progressive", save(inks, "JPEG", "CMYK", progressive=True, **FINE), seen, MEAN, WORST)
    yield good("jpeg-cmyk-plain", without(adobe, APP14), seen, MEAN, WORST)
    ycck = _ycck(inks)
    yield good("jpeg-ycck", ycck, seen, 2 * MEAN, 2 * WORST)
    turned = save(upside(inks, 6), "JPEG", "CMYK", exif=exif(6), **FINE)
    yield good("jpeg-cmyk-exif-6", turned, seen, MEAN, WORST)
    profiled = save(inks, "JPEG", "CMYK", icc_profile=profiles.cmyk(), **FINE)
    yield good("jpeg-cmyk-icc", profiled, _through_cmyk_profile(inks), 2 * MEAN, 2 * WORST)
    mistaken = save(inks, "JPEG", "CMYK", icc_profile=profiles.adobe_rgb(), **FINE)
    yield good("jpeg-cmyk-icc-rgb", mistaken, seen, MEAN, WORST)


def _ycck(inks: Pixels) -> bytes:
    """The inks as luminance and chrominance, and black inverted, beside Adobe's marker with transform 2."""
    coded = Image.fromarray(np.ascontiguousarray(inks[..., :3])).convert("YCbCr")
    stored = np.dstack([np.asarray(coded), 255 - inks[..., 3]])
    plain = without(save(255 - stored, "JPEG", "CMYK", **FINE), APP14)
    return inserted(plain, _adobe(2))


def _through_cmyk_profile(inks: Pixels) -> Pixels:
    image = Image.frombytes("CMYK", (WIDTH, HEIGHT), inks.tobytes())
    source = ImageCms.getOpenProfile(io.BytesIO(profiles.cmyk()))
    seen = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    assert seen is not None
    return np.asarray(seen)


def _orientations() -> Iterator[Picture]:
    pixels = content()
    for orientation in range(1, 9):
        data = save(upside(pixels, orientation), "JPEG", exif=exif(orientation), **FINE)
        yield good(f"jpeg-exif-{orientation}", data, pixels, MEAN, WORST)
    little = save(upside(pixels, 6), "JPEG", exif=exif(6, "<"), progressive=True, **FINE)
    yield good("jpeg-exif-6-little-endian", little, pixels, MEAN, WORST)
    gray = gray_content().astype(np.uint8)
    yield good("jpeg-exif-3-gray", save(upside(gray, 3), "JPEG", exif=exif(3), quality=95), gray, MEAN, WORST)
    for name, body in {
        "jpeg-exif-0": exif(0),
        "jpeg-exif-9": exif(9),
        "jpeg-exif-cut": exif(6)[:-9],
        "jpeg-exif-no-tiff": b"Exif\0\0there is none",
        "jpeg-exif-far-ifd": b"Exif\0\0MM\0*\xff\xff\xff\xf0",
    }.items():
        yield good(name, inserted(save(pixels, "JPEG", **FINE), segment(APP1, body)), pixels, MEAN, WORST)
    data = inserted(save(upside(pixels, 8), "JPEG", **FINE), segment(APP1, _exif_with_thumbnail(8)))
    yield good("jpeg-exif-8-thumbnail", data, pixels, MEAN, WORST)


def _exif_with_thumbnail(orientation: int) -> bytes:
    """EXIF with a second IFD that holds a whole JPEG file, of another picture."""
    thumbnail = save(np.zeros((8, 8, 3), np.uint8), "JPEG")
    first = orientation_exif(orientation)[:-4]
    second = struct.pack(">HHHIHH", 3, 0x0103, 3, 1, 6, 0)
    start = len(first) + 4 + 2 + 3 * 12 + 4
    second += struct.pack(">HHII", 0x0201, 4, 1, start) + struct.pack(">HHII", 0x0202, 4, 1, len(thumbnail)) + bytes(4)
    return b"Exif\0\0" + first + struct.pack(">I", len(first) + 4) + second + thumbnail


def _with_profiles() -> Iterator[Picture]:
    pixels, gray = content(), gray_content().astype(np.uint8)
    adobe = profiles.adobe_rgb()
    converted = profiles.from_adobe_rgb(pixels)
    for name, profile, shown in (
        ("jpeg-icc-srgb", profiles.srgb(), pixels),
        ("jpeg-icc-adobe", adobe, converted),
        ("jpeg-icc-broken", b"no profile at all", pixels),
        ("jpeg-icc-cut", adobe[:200], pixels),
        ("jpeg-icc-cmyk-on-rgb", profiles.cmyk(), pixels),
    ):
        yield good(name, save(pixels, "JPEG", icc_profile=profile, **FINE), shown, 2 * MEAN, 2 * WORST)
    turned = save(upside(pixels, 6), "JPEG", icc_profile=adobe, exif=exif(6), **FINE)
    yield good("jpeg-icc-adobe-exif-6", turned, converted, 2 * MEAN, 2 * WORST)
    halves = [adobe[: len(adobe) // 2], adobe[len(adobe) // 2 :]]
    parts = [segment(APP2, b"ICC_PROFILE\0" + bytes([number, 2]) + half) for number, half in enumerate(halves, 1)]
    plain = save(pixels, "JPEG", **FINE)
    yield good("jpeg-icc-in-parts", inserted(plain, b"".join(parts)), converted, 2 * MEAN, 2 * WORST)
    yield good("jpeg-icc-part-missing", inserted(plain, parts[0]), pixels, MEAN, WORST)
    yield good("jpeg-icc-part-twice", inserted(plain, b"".join([parts[0], *parts])), pixels, MEAN, WORST)
    damaged = plain[:-200] + b"\xff\xd3" + plain[-198:]  # a restart in the middle of a scan
    yield bad("jpeg-icc-part-missing-damaged", inserted(damaged, parts[0]), "broken")
    gray_icc = save(gray, "JPEG", quality=95, icc_profile=profiles.gray_gamma())
    yield good("jpeg-icc-gray", gray_icc, profiles.from_gray_gamma(gray), 2 * MEAN, 2 * WORST)
    yield good("jpeg-icc-rgb-on-gray", save(gray, "JPEG", quality=95, icc_profile=adobe), gray, MEAN, WORST)


def _with_segments() -> Iterator[Picture]:
    pixels = content()
    plain = save(pixels, "JPEG", **FINE)
    xmp = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x='adobe:ns:meta/'/>"
    parts = segments(plain)
    filled = b"".join([parts[0], *(b"\xff\xff\xff" + each for each in parts[1:])])
    other = Image.fromarray(255 - pixels)
    for name, data in {
        "jpeg-comment": save(pixels, "JPEG", comment=b"a comment", **FINE),
        "jpeg-xmp": inserted(plain, segment(APP1, xmp)),
        "jpeg-unknown-segments": inserted(plain, segment(0xEB, bytes(500)) + segment(0xEF, b"\xff\xd9" * 9)),
        "jpeg-trailing": plain + b"what somebody left here",
        "jpeg-trailing-zeros": plain + bytes(4096),
        "jpeg-twice": plain + save(255 - pixels, "JPEG", **FINE),
        "jpeg-fill-bytes": filled,
        "jpeg-mpo": save_image(Image.fromarray(pixels), "MPO", save_all=True, append_images=[other], **FINE),
    }.items():
        yield good(name, data, pixels, MEAN, WORST)


def _by_hand() -> Iterator[Picture]:
    samples = gray_content()
    gray = samples.astype(np.uint8)
    yield good("jpeg-lossless", lossless_jpeg(samples), gray)
    yield good("jpeg-arithmetic", base64.b64decode(_ARITHMETIC), gray, 2 * MEAN, 2 * WORST)
    yield bad("jpeg-12-bit", twelve_bit_jpeg(gray_content(4096)), "unsupported")
    plain = save(content(), "JPEG", **FINE)
    frame = next(each for each in segments(plain) if each[1] in FRAMES)
    later = frame[:5] + b"\0\0" + frame[7:]  # the height comes in a segment DNL after the scan: T.81, B.2.5
    number_of_lines = segment(0xDC, struct.pack(">H", HEIGHT))
    lines = plain[:-2].replace(frame, later) + number_of_lines + plain[-2:]
    yield bad("jpeg-height-at-end", lines, "broken")


def lossless_jpeg(samples: npt.NDArray[np.int64]) -> bytes:
    """A lossless JPEG (SOF3) of 8-bit gray samples, each predicted from its left, in the first column from above."""
    differences = np.diff(samples, axis=1, prepend=0)
    differences[1:, 0] = np.diff(samples[:, 0])
    differences[0, 0] = samples[0, 0] - 128
    return _file(SOF3, 8, samples.shape, [(int(value), "") for value in differences.ravel()])


def twelve_bit_jpeg(samples: npt.NDArray[np.int64]) -> bytes:
    """An extended sequential JPEG (SOF1) of 12-bit gray samples: blocks of 8x8 that are flat, DC coefficients alone."""
    means = samples.reshape(HEIGHT // 8, 8, WIDTH // 8, 8).mean(axis=(1, 3)).round().astype(int).ravel()
    end_of_block = "0"
    coded = [(int(value), end_of_block) for value in np.diff(means, prepend=2048)]
    return _file(SOF1, 12, samples.shape, coded)


def _file(frame: int, precision: int, shape: tuple[int, ...], coded: list[tuple[int, str]]) -> bytes:
    """A JPEG file of one component: differences, each with the bits after it. Every category's code has 5 bits."""
    bits = "".join(_code(difference) + more for difference, more in coded)
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    categories = bytes([0, 0, 0, 0, 16, *bytes(11)]) + bytes(range(16))
    only_end_of_block = bytes([0x10, 1, *bytes(15), 0])
    start, end = (1, 0) if frame == SOF3 else (0, 63)  # the predictor; or the first and last coefficient
    return b"".join(
        (
            b"\xff\xd8",
            segment(DQT, bytes([0, 8, *[1] * 63])),
            segment(frame, struct.pack(">BHHBBBB", precision, *shape, 1, 1, 0x11, 0)),
            segment(DHT, b"\0" + categories),
            b"" if frame == SOF3 else segment(DHT, only_end_of_block),
            segment(SOS, bytes([1, 1, 0, start, end, 0])),
            scan,
            b"\xff\xd9",
        )
    )


def _code(difference: int) -> str:
    """T.81, F.1.2.1: the category, in 5 bits, and so many bits of the difference, less 1 where it is negative."""
    size = abs(difference).bit_length()
    low = difference if difference >= 0 else difference + (1 << size) - 1
    return f"{size:05b}" + (f"{low:0{size}b}" if size else "")

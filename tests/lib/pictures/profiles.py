"""Small ICC profiles made by hand, and what they mean for pixels, by numpy alone.

Format: ICC.1:2004-10 (profile version 2.4): a header of 128 bytes, a table of tags, and big-endian elements, each
padded to 4 bytes. Matrix profiles: section 8.3; lut8Type: 10.8; curveType: 10.5.
"""

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tests.lib.pictures.base import Pixels

Floats = npt.NDArray[np.float64]

# colorants relative to D50, columns red, green, blue
_ADOBE_RGB = np.array([[0.60974, 0.20528, 0.14919], [0.31111, 0.62567, 0.06322], [0.01947, 0.06087, 0.74457]])
_SRGB = np.array([[0.43607, 0.38515, 0.14307], [0.22249, 0.71687, 0.06061], [0.01392, 0.09708, 0.71410]])
_ADOBE_GAMMA = 563 / 256
_D50 = (0.9642, 1.0, 0.8249)
_GRAY_GAMMA = 1.5
# CIE L*a*b* of paper and inks where they overprint, by (cyan, magenta, yellow); about those of coated paper
_INKS = {
    (0, 0, 0): (95, 0, 0),
    (0, 0, 1): (89, -5, 93),
    (0, 1, 0): (48, 74, -3),
    (0, 1, 1): (47, 68, 48),
    (1, 0, 0): (55, -37, -50),
    (1, 0, 1): (50, -68, 33),
    (1, 1, 0): (24, 22, -46),
    (1, 1, 1): (23, 0, 0),
}


def adobe_rgb() -> bytes:
    """The profile of Adobe RGB (1998): a wider gamut than sRGB's, and a pure gamma."""
    return _matrix_profile(_ADOBE_RGB, _curve([round(_ADOBE_GAMMA * 256)]))


def from_adobe_rgb(pixels: Pixels) -> Pixels:
    """Pixels of Adobe RGB as sRGB."""
    linear = (pixels / 255) ** _ADOBE_GAMMA
    return _encode_srgb(linear @ (np.linalg.inv(_SRGB) @ _ADOBE_RGB).T)


def srgb() -> bytes:
    """A profile of sRGB: it changes nothing."""
    levels = np.linspace(0, 1, 1024)
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    return _matrix_profile(_SRGB, _curve([round(value * 65535) for value in linear]))


def gray_gamma() -> bytes:
    """A gray profile with a gamma of 1.5."""
    tags = {b"wtpt": _xyz(_D50), b"kTRC": _curve([round(_GRAY_GAMMA * 256)])}
    return _profile(b"GRAY", b"XYZ ", tags)


def from_gray_gamma(pixels: Pixels) -> Pixels:
    """Gray pixels of `gray_gamma` as sRGB."""
    return _encode_srgb((pixels / 255) ** _GRAY_GAMMA)


def cmyk() -> bytes:
    """A CMYK profile: a table of two points for each ink, to L*a*b*."""
    table = bytearray()
    for ink in range(16):  # the first ink varies least rapidly
        lightness, a, b = _INKS[ink >> 3 & 1, ink >> 2 & 1, ink >> 1 & 1]
        if ink & 1:  # black
            lightness, a, b = lightness // 6, a // 6, b // 6
        table += bytes([round(lightness * 255 / 100), a + 128, b + 128])
    identity = bytes(range(256))
    matrix = struct.pack(">9i", *(65536 * value for value in (1, 0, 0, 0, 1, 0, 0, 0, 1)))
    lut = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + matrix + identity * 4 + bytes(table) + identity * 3
    return _profile(b"CMYK", b"Lab ", {b"wtpt": _xyz(_D50), b"A2B0": lut}, kind=b"prtr")


def _encode_srgb(linear: Floats) -> Pixels:
    """IEC 61966-2-1."""
    clipped = linear.clip(0, 1)
    encoded = np.where(clipped <= 0.0031308, clipped * 12.92, 1.055 * clipped ** (1 / 2.4) - 0.055)
    return np.round(encoded * 255).astype(np.uint8)


def _matrix_profile(colorants: Floats, curve: bytes) -> bytes:
    tags = {b"wtpt": _xyz(_D50)}
    for name, column in zip((b"r", b"g", b"b"), colorants.T, strict=True):
        tags |= {name + b"XYZ": _xyz(column.tolist()), name + b"TRC": curve}
    return _profile(b"RGB ", b"XYZ ", tags)


def _profile(space: bytes, connection: bytes, tags: Mapping[bytes, bytes], kind: bytes = b"mntr") -> bytes:
    told = {b"desc": _description(b"made for a test"), b"cprt": b"text" + bytes(4) + b"none\0"} | dict(tags)
    offset = 128 + 4 + 12 * len(told)
    table, body = struct.pack(">I", len(told)), b""
    for name, element in told.items():
        table += struct.pack(">4sII", name, offset + len(body), len(element))
        body += element + bytes(-len(element) % 4)
    head = struct.pack(">I4sI4s4s4s", offset + len(body), b"none", 0x02400000, kind, space, connection)
    head += struct.pack(">6H4s", 2026, 1, 1, 0, 0, 0, b"acsp") + bytes(28) + _fixed(_D50)
    return head.ljust(128, b"\0") + table + body


def _description(text: bytes) -> bytes:
    return b"desc" + bytes(4) + struct.pack(">I", len(text) + 1) + text + bytes(1 + 8 + 3 + 67)


def _xyz(values: Sequence[float]) -> bytes:
    return b"XYZ " + bytes(4) + _fixed(values)


def _curve(values: Sequence[int]) -> bytes:
    return b"curv" + bytes(4) + struct.pack(f">I{len(values)}H", len(values), *values)


def _fixed(values: Sequence[float]) -> bytes:
    """s15Fixed16Number."""
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))

"""Small ICC profiles made by hand, and what they mean for pixels, by numpy alone.

Format: ICC.1:2004-10 (profile version 2.4): a header of 128 bytes, a table of tags, and big-endian elements, each
padded to 4 bytes. Matrix profiles: section 8.3; lut8Type: 10.8; curveType: 10.5.
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt
from PIL import ImageCms

from tests.lib.pictures.base import Pixels

# colorants relative to D50, columns red, green, blue
_ADOBE_RGB = np.array([[0.60974, 0.20528, 0.14919], [0.31111, 0.62567, 0.06322], [0.01947, 0.06087, 0.74457]])
_SRGB = np.array([[0.43607, 0.38515, 0.14307], [0.22249, 0.71687, 0.06061], [0.01392, 0.09708, 0.71410]])
_DISPLAY_P3 = np.array([[1.2249, -0.2247, 0], [-0.0420, 1.0419, 0], [-0.0197, -0.0786, 1.0979]])  # to linear sRGB
_ADOBE_GAMMA, GRAY_GAMMA = 563 / 256, 1.5
_D50 = (0.9642, 1.0, 0.8249)

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def adobe_rgb() -> bytes:
    """The profile of Adobe RGB (1998): a wider gamut than sRGB's, and a pure gamma."""
    tags: dict[bytes, bytes] = {}
    for name, column in zip((b"r", b"g", b"b"), _ADOBE_RGB.T, strict=True):
        tags |= {name + b"XYZ": b"XYZ " + bytes(4) + _fixed(column.tolist()), name + b"TRC": _curve(_ADOBE_GAMMA)}
    return _profile(b"RGB ", b"XYZ ", tags)


def from_adobe_rgb(pixels: Pixels) -> Pixels:
    return _encode_srgb((pixels / 255) ** _ADOBE_GAMMA @ (np.linalg.inv(_SRGB) @ _ADOBE_RGB).T)


def gray_gamma() -> bytes:
    return _profile(b"GRAY", b"XYZ ", {b"kTRC": _curve(GRAY_GAMMA)})


def from_gamma(pixels: Pixels, exponent: float) -> Pixels:
    """Pixels whose light is a power of their samples as sRGB."""
    return _encode_srgb((pixels / 255) ** exponent)


def from_display_p3(pixels: Pixels) -> Pixels:
    """Pixels of Display P3, whose curve is sRGB's, as sRGB."""
    scaled = pixels / 255
    linear = np.where(scaled <= 0.04045, scaled / 12.92, ((scaled + 0.055) / 1.055) ** 2.4)
    return _encode_srgb(linear @ _DISPLAY_P3.T)


def cmyk() -> bytes:
    """A CMYK profile: a table of two points for each ink, to about the L*a*b* of coated paper."""
    table = bytearray()
    for cyan, magenta, yellow, black in product((0, 1), repeat=4):  # the first ink varies least rapidly
        light = 240 * (1 - 0.4 * cyan) * (1 - 0.5 * magenta) * (1 - 0.05 * yellow)
        shown = 1 - 0.8 * black
        a, b = 74 * magenta - 37 * cyan - 5 * yellow, 90 * yellow - 50 * cyan
        table += bytes([round(light * shown), 128 + round(a * shown), 128 + round(b * shown)])
    identity = bytes(range(256))
    matrix = _fixed((1, 0, 0, 0, 1, 0, 0, 0, 1))
    lut = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + matrix + identity * 4 + bytes(table) + identity * 3
    return _profile(b"CMYK", b"Lab ", {b"A2B0": lut}, kind=b"prtr")


def _encode_srgb(linear: npt.NDArray[np.float64]) -> Pixels:
    """IEC 61966-2-1."""
    clipped = linear.clip(0, 1)
    encoded = np.where(clipped <= 0.0031308, clipped * 12.92, 1.055 * clipped ** (1 / 2.4) - 0.055)
    return np.round(encoded * 255).astype(np.uint8)


def _profile(space: bytes, connection: bytes, tags: Mapping[bytes, bytes], kind: bytes = b"mntr") -> bytes:
    elements = {b"wtpt": b"XYZ " + bytes(4) + _fixed(_D50)} | dict(tags)
    offset = 128 + 4 + 12 * len(elements)
    table, body = struct.pack(">I", len(elements)), b""
    for name, element in elements.items():
        table += struct.pack(">4sII", name, offset + len(body), len(element))
        body += element + bytes(-len(element) % 4)
    head = struct.pack(">I4sI4s4s4s", offset + len(body), b"none", 0x02400000, kind, space, connection)
    head += struct.pack(">6H4s", 2026, 1, 1, 0, 0, 0, b"acsp") + bytes(28) + _fixed(_D50)
    return head.ljust(128, b"\0") + table + body


def _curve(gamma: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256))


def _fixed(values: Sequence[float]) -> bytes:
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))

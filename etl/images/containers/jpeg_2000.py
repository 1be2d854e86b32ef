"""Read what a JPEG 2000 file states about its samples, where Pillow assumes it (ISO/IEC 15444-1, annexes A and I)."""

import struct
from collections.abc import Iterator

import cv2
import numpy as np
from PIL import Image, ImageFile

from etl.images.result import Reason, Reject

_CODESTREAM = b"\xff\x4f\xff\x51"  # SOC, SIZ
_GRID = struct.Struct(">8xIIIIIIII")  # sizes and origins, of the picture and of a tile, in columns and rows
_ORIGIN = 16  # from there on: the offset of the picture on the reference grid, two numbers
_CSIZ = 40  # from there on: the number of components, and three bytes for each
# CMYK, bi-level with white as 1, sRGB, gray, sYCC; and the spaces of profiles (ICC.1, section 7.2.6)
_COLORS_OF_SPACE: dict[int | bytes, int] = {12: 4, 15: 1, 16: 3, 17: 1, 18: 3, b"GRAY": 1, b"RGB ": 3}
_PROFILE_SPACE = slice(16, 20)
_SYCC = 18
_SIGNED = 0x80
_MAX_DEPTH = 16  # bits of a sample that Pillow shows right
_OPENCV_MODES = ("L", "RGB", "RGBA")  # in which OpenCV decodes more than 8 bits
_ENUMERATED = b"\1"  # methods of a colour specification
_PROFILES = (b"\2", b"\3")  # restricted; any, as in JPX


def embedded_profile(data: bytes) -> bytes:
    """Return the ICC profile; empty if there is none."""
    color = _box(data, b"colr")
    return color[3:][: int.from_bytes(color[3:7])] if color[:1] in _PROFILES else b""


def check(image: ImageFile.ImageFile, data: bytes) -> Reject | None:
    """Reject an opened file whose samples are not what Pillow would assume."""
    color, depths = _box(data, b"colr"), _depths(data)
    space: int | bytes = int.from_bytes(color[3:7])
    if color[:1] in _PROFILES:
        space = color[3:][_PROFILE_SPACE]
    colors = _COLORS_OF_SPACE.get(space)
    if color and colors is None:
        return Reject(Reason.UNSUPPORTED, f"the colour space {space!r} of a jpeg2000")
    if _box(data, b"pclr"):
        return Reject(Reason.UNSUPPORTED, "a palette in a jpeg2000")
    count = component_count(data)
    if colors is not None and count - colors not in (0, 1):  # 1 is alpha
        return Reject(Reason.UNSUPPORTED, f"{count} components in the colour space {space!r} of a jpeg2000")
    if not _is_in_order(image, _box(data, b"cdef")):
        return Reject(Reason.UNSUPPORTED, "components that are not colours in order, then alpha, in a jpeg2000")
    if ((min(depths) < 8 or max(depths) > 8) and len(depths) > 1) or max(depths) > _MAX_DEPTH:
        return Reject(Reason.UNSUPPORTED, f"samples of {sorted(depths)} bits in a jpeg2000")
    if not _is_evenly_sampled(data):
        return Reject(Reason.UNSUPPORTED, "components of fewer samples, at an odd size or tile, in a jpeg2000")
    is_decoded = image.mode in _OPENCV_MODES and space != _SYCC and _is_plain_deep(data)
    if _is_rounded_wrong(image, depths) and not is_decoded:
        return Reject(Reason.UNSUPPORTED, f"samples of {max(depths)} bits, mode {image.mode}, in a jpeg2000")
    return None


def _upper_bits(data: bytes) -> Image.Image:
    """Decode the upper 8 bits of samples that have more."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise ValueError("broken codestream")
    samples = (pixels.astype(np.uint16) >> max(_depths(data)) - 8).astype(np.uint8)
    if samples.ndim > 2:
        samples = samples[..., [2, 1, 0, 3][: samples.shape[2]]]  # of blue, green, red, alpha
    return Image.fromarray(samples)


def _is_rounded_wrong(image: Image.Image, depths: set[int]) -> bool:
    """True if Pillow makes some of the largest values 0."""
    return max(depths) > 8 and not image.mode.startswith("I")


def _is_plain_deep(data: bytes) -> bool:
    """True if the picture begins at 0, and all components are unsigned and of its size: OpenCV rejects others."""
    components = _components(data)
    is_unsigned, steps = max(components[::3]) < _SIGNED, components[1::3] + components[2::3]
    return is_unsigned and not steps.strip(b"\1") and not any(_codestream(data)[_ORIGIN : _ORIGIN + 8])


def _is_evenly_sampled(data: bytes) -> bool:
    """True if all components have a sample for the same points, or sizes and origins are multiples of all steps.

    Pillow rounds the sizes of smaller components down.
    """
    components = _components(data)
    steps = set(components[1::3]), set(components[2::3])
    if max(map(len, steps)) <= 1:
        return True
    grid = _GRID.unpack_from(_codestream(data))
    for axis, own in enumerate(steps):
        size, origin, tile, tile_origin = grid[axis::2]
        edges = (size, origin, tile_origin, tile if tile < size else 0)
        if any(each % step for each in edges for step in own if step):
            return False
    return True


def scaled(image: Image.Image, data: bytes) -> Image.Image | None:
    """Return the decoded image with samples of the whole range; None if Pillow decoded it right.

    Pillow only shifts samples of less than 8 bits. It rounds those of more, some beyond 255 to 0, so OpenCV decodes
    these. Raises ValueError if the file is damaged.
    """
    if _is_rounded_wrong(image, _depths(data)):
        return _upper_bits(data)
    if (depth := min(_depths(data))) >= 8:
        return None
    most = 256 - (1 << 8 - depth)
    return image.point([min(255, value * 255 // most) for value in range(256)] * len(image.getbands()))


def _is_in_order(image: Image.Image, defined: bytes) -> bool:
    """True if the components are what Pillow assumes from their number; it ignores their definitions."""
    has_alpha = image.mode in ("LA", "RGBA")
    if not defined:
        return image.mode != "LA"  # of four, the last is alpha for other programs, too; of two it is not
    colors = len(image.getbands()) - has_alpha
    entries = sorted(struct.iter_unpack(">3H", defined[2 : 2 + 6 * int.from_bytes(defined[:2])]))
    return entries == [(n, 0, n + 1) for n in range(colors)] + [(colors, 1, 0)] * has_alpha


def component_count(data: bytes) -> int:
    """Return the number of components that the codestream states."""
    return int.from_bytes(_codestream(data)[_CSIZ : _CSIZ + 2])


def _depths(data: bytes) -> set[int]:
    """Return the numbers of bits of the components."""
    return {(each & 0x7F) + 1 for each in _components(data)[::3]} or {8}


def _components(data: bytes) -> bytes:
    """Return three bytes for each component: depth with sign, horizontal and vertical step."""
    return bytes(_codestream(data)[_CSIZ + 2 :][: 3 * component_count(data)])


def _codestream(data: bytes) -> memoryview:
    """Return the codestream: the whole of a bare one, else the body of the box jp2c; empty if there is none."""
    view = memoryview(data)
    if data.startswith(_CODESTREAM):
        return view
    return next((body for kind, body in _boxes(view) if kind == b"jp2c"), view[:0])


def _box(data: bytes, kind: bytes) -> bytes:
    """Return the body of a box of the header box, or of the first colour specification of a known method, or empty."""
    header = next((body for found, body in _boxes(memoryview(data)) if found == b"jp2h"), memoryview(b""))
    bodies = (bytes(body) for found, body in _boxes(header) if found == kind)
    return next((body for body in bodies if kind != b"colr" or body[:1] in (_ENUMERATED, *_PROFILES)), b"")


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the type and the body of each box (section I.4)."""
    position = 0
    while position + 8 <= len(data):
        size, start = int.from_bytes(data[position : position + 4]), position + 8
        if size == 1:
            size, start = int.from_bytes(data[start : start + 8]), start + 8
        end = position + size if size else len(data)
        if end < start:
            return
        yield bytes(data[position + 4 : position + 8]), data[start:end]
        position = end

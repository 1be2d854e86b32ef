"""What a JPEG 2000 file says of its samples, which Pillow decodes by assumption: ISO/IEC 15444-1, annexes A and I."""

import struct

from PIL import Image, ImageFile

from etl.images.result import Reason, Reject

_CODESTREAM = b"\xff\x4f\xff\x51"  # SOC, SIZ
_CSIZ = 40  # from there on: the number of components, and three bytes for each
_COLOR_SPACES = (0, 12, 15, 16, 17, 18)  # bi-level, CMYK, bi-level, sRGB, gray, sYCC
_ENUMERATED = 1
_PROFILES = (2, 3)  # restricted; any, as in JPX


def embedded_profile(data: bytes) -> bytes:
    """The ICC profile; empty if there is none."""
    color = _box(data, b"colr")
    return color[3:][: int.from_bytes(color[3:7])] if color[:1] and color[0] in _PROFILES else b""


def check(image: ImageFile.ImageFile, data: bytes) -> Reject | None:
    """Reject an opened file that Pillow would decode by assumption."""
    color, depths = _box(data, b"colr"), _depths(data)
    space = int.from_bytes(color[3:7])
    if color[:1] == bytes([_ENUMERATED]) and space not in _COLOR_SPACES:
        return Reject(Reason.UNSUPPORTED, f"the colour space {space} of a jpeg2000")
    palette = _box(data, b"pclr")
    if palette and not _is_plain_palette(image, data, palette):
        return Reject(
            Reason.UNSUPPORTED, "a palette with equal colours, reordered or of more than 8 bits in a jpeg2000"
        )
    if not palette and not _is_in_order(image, _box(data, b"cdef")):
        return Reject(Reason.UNSUPPORTED, "components that are not colours in order, then alpha, in a jpeg2000")
    if min(depths) < 8 and (len(depths) > 1 or palette):
        return Reject(Reason.UNSUPPORTED, f"samples of {sorted(depths)} bits in a jpeg2000")
    return None


def scaled(image: Image.Image, data: bytes) -> Image.Image | None:
    """The decoded image, whose samples of less than 8 bits Pillow only shifts; None if they are right."""
    if (depth := min(_depths(data))) >= 8:
        return None
    most = 256 - (1 << 8 - depth)
    return image.point([min(255, value * 255 // most) for value in range(256)] * len(image.getbands()))


def _is_plain_palette(image: ImageFile.ImageFile, data: bytes, palette: bytes) -> bool:
    """Pillow counts equal colours once, and ignores the order of channels."""
    columns = range(palette[2])
    mapped, defined = _box(data, b"cmap"), _box(data, b"cdef")
    return (
        image.palette is not None
        and len(image.palette.colors) == int.from_bytes(palette[:2])
        and mapped.startswith(b"".join(struct.pack(">HBB", 0, 1, each) for each in columns))
        and (not defined or defined[2:].startswith(b"".join(struct.pack(">3H", n, 0, n + 1) for n in columns)))
    )


def _is_in_order(image: Image.Image, defined: bytes) -> bool:
    """Whether the components mean what Pillow takes them for: it looks at their number, and ignores definitions."""
    has_alpha = image.mode in ("LA", "RGBA")
    if not defined:
        return image.mode != "LA"  # of four, the last is alpha for other programs, too; of two it is not
    colors = len(image.getbands()) - has_alpha
    entries = sorted(struct.iter_unpack(">3H", defined[2 : 2 + 6 * int.from_bytes(defined[:2])]))
    return entries == [(n, 0, n + 1) for n in range(colors)] + [(colors, 1, 0)] * has_alpha


def component_count(data: bytes) -> int:
    start = data.find(_CODESTREAM) + _CSIZ
    return int.from_bytes(data[start : start + 2])


def _depths(data: bytes) -> set[int]:
    """The numbers of bits of the components."""
    start, count = data.find(_CODESTREAM) + _CSIZ, component_count(data)
    return {(each & 0x7F) + 1 for each in data[start + 2 : start + 2 + 3 * count : 3]} or {8}


def _box(data: bytes, kind: bytes) -> bytes:
    """What follows the type of a box before the codestream; empty if there is none."""
    start, end = data.find(kind, 0, data.find(_CODESTREAM)), data.find(_CODESTREAM)
    return data[start + 4 : end] if start >= 0 and end >= 0 else b""

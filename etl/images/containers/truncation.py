"""Tell a file that was cut off from one that is damaged, by the sizes in its headers.

A file that can be decoded is never rejected for this reason, because some programs have written wrong lengths.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

Order = Literal["little", "big"]

_GIF_HEADER, _GIF_FRAME, _GIF_EXTENSION = 13, 0x2C, 0x21
_BIG_TIFF = 43
_OFFSETS, _SIZES = (273, 324), (279, 325)  # the tags of strips, of tiles
_UINTS = {3: 2, 4: 4, 16: 8}  # bytes of SHORT, LONG, LONG8
_END_OF_CODESTREAM = b"\xff\xd9"


def is_truncated(data: bytes, format: str) -> bool:
    """True if the file is shorter than its headers say; ``format`` is Pillow's name of it in lower case."""
    try:
        return format in _CHECKS and _CHECKS[format](data)
    except EOFError:
        return True


def _is_bmp_truncated(data: bytes) -> bool:
    """By bfSize of BITMAPFILEHEADER (Microsoft, "Bitmap Storage")."""
    return _number(data, 2, 4, "little") > len(data)


def _is_webp_truncated(data: bytes) -> bool:
    """By the size of the RIFF file (RFC 9649, section 2.4)."""
    return _number(data, 4, 4, "little") + 8 > len(data)


def _is_gif_truncated(data: bytes) -> bool:
    """True if the blocks (GIF89a, appendix B) reach the end of the file without a trailer."""
    position = _GIF_HEADER + _gif_colors_size(data, 10)
    while position < len(data):
        if data[position] == _GIF_FRAME:
            position += 11 + _gif_colors_size(data, position + 9)
        elif data[position] == _GIF_EXTENSION:
            position += 2
        else:
            return False
        while size := _number(data, position, 1, "little"):
            position += 1 + size
        position += 1
    return True


def _gif_colors_size(data: bytes, position: int) -> int:
    """Return the size in bytes of the table of colours that the flags at ``position`` announce."""
    flags = _number(data, position, 1, "little")
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _is_tiff_truncated(data: bytes) -> bool:
    """True if the first directory, or a strip or tile of it, ends behind the file (TIFF 6.0, section 2; BigTIFF)."""
    order: Order = "little" if data.startswith(b"II") else "big"
    big = _number(data, 2, 2, order) == _BIG_TIFF
    wide, counts, entry = (8, 8, 20) if big else (4, 2, 12)
    directory = _number(data, wide, wide, order)
    pieces = {}
    for number in range(_number(data, directory, counts, order)):
        start = directory + counts + number * entry
        tag = _number(data, start, 2, order)
        if tag in _OFFSETS + _SIZES:
            pieces[tag] = _tiff_numbers(data, start, wide, order)
    ends = (
        start + size
        for tags in zip(_OFFSETS, _SIZES, strict=True)
        for start, size in zip(*(pieces.get(tag, []) for tag in tags), strict=False)
    )
    return any(end > len(data) for end in ends)


def _tiff_numbers(data: bytes, entry: int, wide: int, order: Order) -> list[int]:
    """Return the values of an entry of a directory; up to ``wide`` bytes of them are in the entry itself."""
    kind, count, place = _number(data, entry + 2, 2, order), _number(data, entry + 4, wide, order), entry + 4 + wide
    size = _UINTS.get(kind, 0)
    if size * count > wide:
        place = _number(data, place, wide, order)
    if not size:
        return []
    values = _bytes(data, place, size * count)
    return np.frombuffer(values, f"{'<' if order == 'little' else '>'}u{size}").tolist()


def _are_boxes_truncated(data: bytes) -> bool:
    """By the sizes of the boxes (ISO/IEC 14496-12, section 4.2), of AVIF and JP2; a bare codestream ends with EOC."""
    if data.startswith(b"\xff"):
        return not data.endswith(_END_OF_CODESTREAM)
    position = 0
    while position < len(data):
        size = _number(data, position, 4, "big")
        if size == 1:
            size = _number(data, position + 8, 8, "big")
        if size < 8:  # 0 is all that follows
            return False
        position += size
    return position > len(data)


def _number(data: bytes, start: int, size: int, order: Order) -> int:
    return int.from_bytes(_bytes(data, start, size), order)


def _bytes(data: bytes, start: int, size: int) -> bytes:
    """Return ``size`` bytes. Raises EOFError if the file ends before."""
    if start + size > len(data):
        raise EOFError
    return data[start : start + size]


_CHECKS: Mapping[str, Callable[[bytes], bool]] = {
    "bmp": _is_bmp_truncated,
    "webp": _is_webp_truncated,
    "gif": _is_gif_truncated,
    "tiff": _is_tiff_truncated,
    "avif": _are_boxes_truncated,
    "jpeg2000": _are_boxes_truncated,
}

"""Rewrite BMP files that Pillow cannot read into a form that it can; find the colour profile of a BMP file.

Format: Microsoft, "Bitmap Storage": BITMAPFILEHEADER, BITMAPINFOHEADER, BITMAPV3INFOHEADER to BITMAPV5HEADER.
"""

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FILE_HEADER_BYTES, _INFO_BYTES, _V3_BYTES, _V5_BYTES = 14, 40, 56, 124  # sizes of headers
_WITH_MASKS = (40, 52, 56, 108, 124)  # sizes of headers that may have masks; that of OS/2, of 64, has none
_MASKS_AT, _COLORS_AT, _COLOR_SPACE_AT, _PROFILE_AT = 54, 46, 70, 126  # offsets
_BIT_FIELDS, _ALPHA_BIT_FIELDS = 3, 6  # of compression
_EMBEDDED = b"DEBM"  # PROFILE_EMBEDDED
_KNOWN_MASKS = {
    16: ((0xF800, 0x7E0, 0x1F, 0), (0x7C00, 0x3E0, 0x1F, 0)),
    32: ((0xFF0000, 0xFF00, 0xFF, 0), (0xFF0000, 0xFF00, 0xFF, 0xFF000000)),
}
_BGRA_MASKS = _KNOWN_MASKS[32][1]


def embedded_profile(data: bytes) -> bytes:
    """Return the ICC profile; empty if there is none."""
    is_v5 = int.from_bytes(data[_FILE_HEADER_BYTES : _FILE_HEADER_BYTES + 4], "little") >= _V5_BYTES
    if not is_v5 or len(data) < _FILE_HEADER_BYTES + _V5_BYTES or not data.startswith(_EMBEDDED, _COLOR_SPACE_AT):
        return b""
    start, size = struct.unpack_from("<2I", data, _PROFILE_AT)
    return data[_FILE_HEADER_BYTES + start : _FILE_HEADER_BYTES + start + size]


def readable_by_pillow(data: bytes) -> bytes:
    """Return the file with samples of unusual bit fields as bytes, and without colours that no index can refer to."""
    if len(data) < _MASKS_AT + 16:
        return data
    offset, header, width, height, bits, compression = struct.unpack_from("<IIiixxHI", data, 10)
    if compression in (_BIT_FIELDS, _ALPHA_BIT_FIELDS) and bits in _KNOWN_MASKS and header in _WITH_MASKS:
        count = 4 if header >= _V3_BYTES or compression == _ALPHA_BIT_FIELDS else 3
        masks = (*struct.unpack_from(f"<{count}I", data, _MASKS_AT), 0)[:4]
        if compression == _BIT_FIELDS and masks in _KNOWN_MASKS[bits]:
            return data
        return _as_32_bits(data, (width, height), _samples(data, offset, width, bits), masks)
    colors = int.from_bytes(data[_COLORS_AT : _COLORS_AT + 4], "little")
    if (
        bits <= 8
        and colors > 1 << bits
        and header >= _INFO_BYTES
        and _FILE_HEADER_BYTES + header + 4 * colors <= offset
    ):
        return data[:_COLORS_AT] + struct.pack("<I", 1 << bits) + data[_COLORS_AT + 4 :]
    return data


def _samples(data: bytes, offset: int, width: int, bits: int) -> npt.NDArray[np.unsignedinteger]:
    """Return the complete rows of samples, in the order of the file: unsigned integers (rows, width)."""
    start, size_bytes = min(offset, len(data)), bits // 8
    stride = (max(width, 0) * bits + 31) // 32 * 4
    rows = (len(data) - start) // stride if stride else 0
    if not rows:
        return np.zeros((0, max(width, 0)), f"<u{size_bytes}")
    found = np.frombuffer(data, f"<u{size_bytes}", rows * stride // size_bytes, start)
    return found.reshape(rows, stride // size_bytes)[:, :width]


def _as_32_bits(
    data: bytes, size: tuple[int, int], samples: npt.NDArray[np.unsignedinteger], masks: Sequence[int]
) -> bytes:
    """Return a file of 32 bits per pixel with the samples in ``masks``; or ``data`` if these are not bit fields."""
    shifts = [(mask & -mask).bit_length() - 1 for mask in masks]
    largest = [mask >> shift if mask else 0 for mask, shift in zip(masks, shifts, strict=True)]
    if sum(masks) > 0xFFFFFFFF or any(most & most + 1 for most in largest):
        return data
    pixels = np.zeros((*samples.shape, 4), np.uint8)  # blue, green, red, alpha
    for place, mask, shift, most in zip((2, 1, 0, 3), masks, shifts, largest, strict=True):
        if most:
            for row, values in zip(pixels, samples, strict=True):
                row[:, place] = (((values.astype(np.int64) & mask) >> shift) * 255 + most // 2) // most
    new_masks = _BGRA_MASKS if masks[3] else (*_BGRA_MASKS[:3], 0)
    fields = (_V3_BYTES, *size, 1, 32, _BIT_FIELDS, pixels.nbytes, 0, 0, 0, 0, *new_masks)
    start = _FILE_HEADER_BYTES + _V3_BYTES
    return struct.pack("<2sIIIIiiHH6I4I", b"BM", start + pixels.nbytes, 0, start, *fields) + pixels.tobytes()

"""What image files consist of: segments, chunks, blocks, entries of a directory. Joined, the parts are the file again.

Formats: ITU-T T.81, B.1.1; RFC 2083, section 3.2; RFC 9649, section 2.3 (RIFF); GIF89a, appendix B; TIFF 6.0,
section 2; IEEE Std 1003.1-2017, pax (blocks of tar).
"""

import struct

from tests.lib.pictures.jpeg import segments
from tests.lib.pictures.png import SIGNATURE, chunks

_PIECE, _TAR_BLOCK = 12, 512


def file_parts(data: bytes) -> list[bytes]:
    """At least one part, which may be empty; the first is that by which the format is told."""
    if data.startswith(b"\xff\xd8"):
        return segments(data)
    if data.startswith(SIGNATURE):
        return [SIGNATURE, *chunks(data)]
    if data.startswith(b"RIFF"):
        return _riff_chunks(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _gif_blocks(data)
    if data.startswith((b"II*\0", b"MM\0*")):
        return _tiff_entries(data)
    piece = _TAR_BLOCK if data[257:262] == b"ustar" else _PIECE
    return [data[start : start + piece] for start in range(0, len(data), piece)] or [b""]


def _riff_chunks(data: bytes) -> list[bytes]:
    parts, position = [data[:12]], 12
    while position < len(data):
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        end = position + 8 + size + size % 2
        parts.append(data[position:end])
        position = end
    return parts


def _gif_blocks(data: bytes) -> list[bytes]:
    """The header with the global colours, and each extension and frame."""
    end = 13 + _colors_size(data[10:11])
    parts = [data[:end]]
    while end < len(data):
        start = end
        if data[start] == 0x2C:
            end = start + 10 + _colors_size(data[start + 9 : start + 10]) + 1  # and the minimum code size
        elif data[start] == 0x21:
            end = start + 2
        else:
            return [*parts, data[start:]]
        while end < len(data) and data[end]:
            end += 1 + data[end]
        end += 1
        parts.append(data[start:end])
    return parts


def _colors_size(flags: bytes) -> int:
    """The bytes of a table of colours, by the byte that tells of it."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0


def _tiff_entries(data: bytes) -> list[bytes]:
    """What comes before the first directory's entries, each entry, and what comes after."""
    order = "<" if data.startswith(b"II") else ">"
    start = struct.unpack_from(f"{order}I", data.ljust(8, b"\0"), 4)[0]
    if start + 2 > len(data):
        return [data]
    count = struct.unpack_from(f"{order}H", data, start)[0]
    first, end = start + 2, min(start + 2 + 12 * count, len(data))
    return [data[:first], *(data[each : min(each + 12, end)] for each in range(first, end, 12)), data[end:]]

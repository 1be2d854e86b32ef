"""What image files consist of: segments, chunks, blocks. Joined, the parts are the file again.

Formats: ITU-T T.81, B.1.1; RFC 2083, section 3.2; RFC 9649, section 2.3 (RIFF); IEEE Std 1003.1-2017, pax (blocks of
tar). Other files are cut into pieces of 12 bytes, as long as an entry of a directory of TIFF.
"""

from tests.lib.pictures.jpeg import segments
from tests.lib.pictures.png import SIGNATURE, chunks

_PIECE, _TAR_BLOCK = 12, 512


def file_parts(data: bytes) -> list[bytes]:
    """At least one part, which may be empty; the first is that that identifies the format."""
    if data.startswith(b"\xff\xd8"):
        return segments(data)
    if data.startswith(SIGNATURE):
        return [SIGNATURE, *chunks(data)]
    if data.startswith(b"RIFF"):
        return _riff_chunks(data)
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

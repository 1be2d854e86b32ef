"""The chunks of a PNG file (W3C, PNG specification, third edition): whole, and as their CRCs say.

Decoders look at the CRC of few of them, and so may show what a flipped bit made of the picture.
"""

import re
import zlib
from dataclasses import dataclass

from etl.images.result import Reason, Reject

SIGNATURE = b"\x89PNG\r\n\x1a\n"

MOST_CHUNKS = 100_000  # with 4 KiB in each, as little as programs put there, that is more than --max-bytes

_FRAMING_BYTES = 12  # length, type, CRC
_HARMLESS = {b"IHDR", b"IDAT", b"IEND", b"pHYs", b"sRGB"}
_NEEDED = {b"tRNS", b"iCCP", b"acTL", b"fcTL", b"fdAT"}  # of the ancillary ones, to decode the picture
_ANCILLARY = 0x20  # bit 5 of the type's first byte
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_RAW_EXIF = re.compile(rb"Raw profile type (?:exif|APP1)\0")
_HEX = re.compile(rb"\n\w+\n *\d+\n([0-9a-fA-F\n]+)")
_MOST_EXIF = 1 << 18  # hex of the most that a JPEG has, twice
_COMPONENTS = {0: 1, 2: 3}  # of colour types without palette and alpha


@dataclass(frozen=True)
class PngChunks:
    """``components`` by pixel, 0 where they are not 8 bits of gray or of red, green and blue.

    ``bare`` says that the file carries nothing but the picture; without ``exif`` that is empty. It is that of eXIf,
    or of the text that ImageMagick and ExifTool write.
    """

    components: int
    bare: bool
    exif: bytes


def read_chunks(data: bytes) -> PngChunks | Reject:
    """Walk the chunks to IEND and check the CRC of those that the picture is made of."""
    view, position, bare, components, exif = memoryview(data), len(SIGNATURE), True, 0, b""
    for _ in range(MOST_CHUNKS):
        length, kind = int.from_bytes(view[position : position + 4]), bytes(view[position + 4 : position + 8])
        end = position + _FRAMING_BYTES + length
        if end > len(data):
            return Reject(Reason.TRUNCATED, f"{len(data)} bytes, the chunk at offset {position} needs {end}")
        is_right = _is_right(view[position:end])
        if not is_right and (not kind[0] & _ANCILLARY or kind == b"tRNS"):
            return Reject(Reason.BROKEN, f"wrong CRC of the chunk {kind!r} at offset {position}")
        if kind == b"IHDR" and length >= 10 and data[position + 16] == 8:
            components = _COMPONENTS.get(data[position + 17], 0)
        if kind == b"eXIf" and is_right:
            exif = bytes(view[position + 8 : end - 4])
        if kind in _TEXTS and is_right and not exif:
            exif = _raw_exif(kind, bytes(view[position + 8 : end - 4]))
        bare = bare and is_right and kind in _HARMLESS
        if kind == b"IEND":
            return PngChunks(components, bare and end == len(data), exif)
        position = end
    return Reject(Reason.BROKEN, f"more than {MOST_CHUNKS} chunks")


def _raw_exif(kind: bytes, text: bytes) -> bytes:
    """EXIF in hexadecimal, as a text chunk has it; empty if there is none."""
    if not (keyword := _RAW_EXIF.match(text)):
        return b""
    body = text[keyword.end() :]
    try:
        if kind == b"zTXt":
            body = zlib.decompressobj().decompress(body[1:], _MOST_EXIF)
        if kind == b"iTXt":
            is_compressed, body = body[:1] == b"\1", body[2:].split(b"\0", 2)[2]
            body = zlib.decompressobj().decompress(body, _MOST_EXIF) if is_compressed else body
        found = _HEX.match(body)
        return bytes.fromhex(found[1].decode()) if found else b""
    except (zlib.error, IndexError, ValueError):
        return b""


def without_extras(data: bytes) -> bytes:
    """A file that `read_chunks` has found whole, without chunks that its picture does not need or that are damaged.

    Pillow refuses a picture because of them; libpng, and so browsers and ImageMagick, pass them over.
    """
    view, position, kept, kind = memoryview(data), len(SIGNATURE), [memoryview(SIGNATURE)], b""
    while kind != b"IEND":
        kind = bytes(view[position + 4 : position + 8])
        each = view[position : position + _FRAMING_BYTES + int.from_bytes(view[position : position + 4])]
        if not kind[0] & _ANCILLARY or (kind in _NEEDED and _is_right(each)):
            kept.append(each)
        position += len(each)
    return b"".join(kept)


def _is_right(chunk: memoryview) -> bool:
    """Whether a chunk is as its CRC says."""
    return zlib.crc32(chunk[4:-4]) == int.from_bytes(chunk[-4:])

"""Read the chunks of a PNG file (W3C, PNG specification, third edition), and check that they are whole and undamaged.

Decoders check the CRC of few of them, so that a flipped bit may change the picture without an error.
"""

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from etl.images import icc
from etl.images.result import Reason, Reject

SIGNATURE = b"\x89PNG\r\n\x1a\n"

MAX_CHUNKS = 100_000  # with 4 KiB in each, as little as programs put there, that is more than --max-bytes

_FRAMING_BYTES = 12  # length, type, CRC
_HEADER = 16  # where the body of IHDR begins
_HARMLESS = {b"IHDR", b"IDAT", b"IEND", b"pHYs", b"sRGB"}
_NEEDED = {b"tRNS", b"iCCP", b"acTL", b"fcTL", b"fdAT"}  # of the ancillary ones, to decode the picture
_ONCE = {b"tRNS", b"iCCP"}  # libpng ignores a second one
_ANCILLARY = 0x20  # bit 5 of the type's first byte
# each with its bytes, as libpng takes them: iCCP has 92 at least, of which a name may take 81 and 11 a deflated stream
_COLORS = {b"cICP": 4, b"iCCP": 92, b"sRGB": 1, b"gAMA": 4, b"cHRM": 32}
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_XMP = b"XML:com.adobe.xmp\0"
_RAW_EXIF = re.compile(rb"Raw profile type (?:exif|APP1)\0")
_HEX = re.compile(rb"\n\w+\n *\d+\n([0-9a-fA-F\n]+)")
_MAX_TEXT = 1 << 18  # hex of the most EXIF that a JPEG has, twice
_COMPONENTS = {0: 1, 2: 3}  # of colour types without palette and alpha
_PALETTE = 3  # a colour type
_GRAYS = (0, 4)  # colour types
_GAMMA_OF_SRGB, _GAMMA_TOLERANCE = 45_455, 0.05  # within it libpng does not correct


@dataclass(frozen=True)
class PngChunks:
    """``components`` per pixel, 0 if they are not 8 bits of gray or of red, green and blue.

    ``bare`` is True if the file contains the picture only. ``exif`` is that of eXIf, or of the text that ImageMagick
    and ExifTool write, and may be empty, like ``xmp``. ``profile`` is made from gAMA and cHRM, or from cICP; it is
    empty if the file has an ICC profile.
    """

    components: int
    bare: bool
    exif: bytes
    xmp: bytes
    profile: bytes


def read_chunks(data: bytes) -> PngChunks | Reject:
    """Walk the chunks to IEND and check the CRC of those that the picture is made of."""
    view, position, bare, exif = memoryview(data), len(SIGNATURE), True, b""
    colors, before = dict[bytes, bytes](), dict[bytes, int]()
    raw: bytes | None = None  # of texts only the first counts: to inflate thousands takes long
    xmp: bytes | None = None
    for _ in range(MAX_CHUNKS):
        length, kind = int.from_bytes(view[position : position + 4]), bytes(view[position + 4 : position + 8])
        end = position + _FRAMING_BYTES + length
        if end > len(data):
            return Reject(Reason.TRUNCATED, f"{len(data)} bytes, the chunk at offset {position} needs {end}")
        is_right, body = _is_right(view[position:end]), view[position + 8 : end - 4]
        if not is_right and (not kind[0] & _ANCILLARY or kind == b"tRNS"):
            return Reject(Reason.BROKEN, f"wrong CRC of the chunk {kind!r} at offset {position}")
        if is_right and kind in _COLORS and _is_used(kind, length, before, data):
            colors.setdefault(kind, bytes(body[:32]))
        before.setdefault(kind, length)
        if kind == b"eXIf" and is_right:
            exif = bytes(body)
        if kind in _TEXTS and is_right:
            if raw is None and (keyword := _RAW_EXIF.match(body)):
                raw = _raw_exif(kind, bytes(body[keyword.end() :]))
            if xmp is None and body[: len(_XMP)] == _XMP:
                xmp = _text(kind, bytes(body[len(_XMP) :]))
        bare = bare and is_right and kind in _HARMLESS
        if kind == b"IEND":
            found = PngChunks(0, bare and end == len(data), exif or raw or b"", xmp or b"", b"")
            return _checked(data, found, colors)
        position = end
    return Reject(Reason.BROKEN, f"more than {MAX_CHUNKS} chunks")


def _checked(data: bytes, found: PngChunks, colors: Mapping[bytes, bytes]) -> PngChunks | Reject:
    """Add the number of components and the profile, from the header and the chunks of colours."""
    depth, color_type = data[_HEADER + 8 : _HEADER + 10] if data[12:16] == b"IHDR" else (0, 0)
    profile = _profile(colors, color_type in _GRAYS)
    if isinstance(profile, Reject):
        return profile
    return replace(found, components=_COMPONENTS.get(color_type, 0) if depth == 8 else 0, profile=profile)


def _profile(colors: Mapping[bytes, bytes], is_gray: bool) -> bytes | Reject:
    """Make the profile, by the precedence of section 4.3 of the specification; unknown colours are rejected."""
    if b"cICP" in colors:
        primaries, curve = colors[b"cICP"][:2]
        return icc.profile_of_codes(primaries, curve, is_gray)
    if b"iCCP" in colors or b"sRGB" in colors:
        return b""
    gamma = int.from_bytes(colors.get(b"gAMA", b""))
    is_srgb = abs(gamma - _GAMMA_OF_SRGB) <= _GAMMA_TOLERANCE * _GAMMA_OF_SRGB or not gamma
    if is_srgb and b"cHRM" not in colors:
        return b""
    points = [each / 100_000 for each in struct.unpack(">8I", colors[b"cHRM"])] if b"cHRM" in colors else ()
    return icc.make_profile(icc.SRGB_CURVE if is_srgb else 100_000 / gamma, points, is_gray)


def _raw_exif(kind: bytes, body: bytes) -> bytes:
    """Return EXIF that a text chunk has in hexadecimal behind its keyword; empty if there is none."""
    found = _HEX.match(_text(kind, body))
    try:
        return bytes.fromhex(found[1].decode()) if found else b""
    except ValueError:
        return b""


def _text(kind: bytes, body: bytes) -> bytes:
    """Return the text that follows the keyword of a chunk; empty if it is damaged."""
    try:
        if kind == b"zTXt":
            return zlib.decompressobj().decompress(body[1:], _MAX_TEXT)
        if kind == b"iTXt":
            is_compressed, body = body[:1] == b"\1", body[2:].split(b"\0", 2)[2]
            return zlib.decompressobj().decompress(body, _MAX_TEXT) if is_compressed else body
        return body
    except (zlib.error, IndexError):
        return b""


def without_extras(data: bytes) -> bytes:
    """Return a file that `read_chunks` accepted without chunks that are damaged or not needed for the picture.

    Pillow rejects a picture because of them, or uses some that are out of place. libpng, and so browsers and
    ImageMagick, ignore them.
    """
    view, position, kept, kind = memoryview(data), len(SIGNATURE), [memoryview(SIGNATURE)], b""
    before, used = dict[bytes, int](), set[bytes]()
    while kind != b"IEND":
        kind = bytes(view[position + 4 : position + 8])
        each = view[position : position + _FRAMING_BYTES + int.from_bytes(view[position : position + 4])]
        length = len(each) - _FRAMING_BYTES
        is_used = kind in _NEEDED and _is_right(each) and _is_used(kind, length, before, data)
        if not kind[0] & _ANCILLARY or (is_used and kind not in used):
            kept.append(each)
            used.update({kind} & _ONCE)
        before.setdefault(kind, length)
        position += len(each)
    return b"".join(kept)


def _is_used(kind: bytes, length: int, before: Mapping[bytes, int], data: bytes) -> bool:
    """True if libpng uses a chunk of colours or transparency that follows the kinds (with lengths) in ``before``."""
    if kind in _COLORS:
        has_size = length == _COLORS[kind] or (kind == b"iCCP" and length > _COLORS[kind])
        return has_size and b"PLTE" not in before and b"IDAT" not in before
    if kind != b"tRNS":
        return True
    depth, color_type = data[_HEADER + 8 : _HEADER + 10]
    if color_type == _PALETTE:
        is_fitting = 0 < length <= min(before.get(b"PLTE", 0) // 3, 1 << depth)
    else:
        is_fitting = length == 2 * _COMPONENTS.get(color_type, -1)
    return is_fitting and b"IDAT" not in before


def _is_right(chunk: memoryview) -> bool:
    """True if the CRC of a chunk is right."""
    return zlib.crc32(chunk[4:-4]) == int.from_bytes(chunk[-4:])

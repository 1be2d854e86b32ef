"""Read the chunks of a WebP file (RFC 9649, section 2) before libwebp allocates memory for the whole canvas."""

from typing import NamedTuple

from etl.images.result import Reason, Reject

_RIFF_HEADER = 12  # "RIFF", the size of what follows, "WEBP"
_START_CODE = b"\x9d\x01\x2a"  # of a key frame: RFC 6386, section 9.1
_LOSSLESS = b"\x2f"  # RFC 9649, section 3.4
_SIDE = 0x3FFF  # the 14 bits of a side


class WebpChunks(NamedTuple):
    """``width`` and ``height`` are those of the canvas; ``frames`` of an animation, else 1.

    ``exif`` and ``xmp`` may be empty. ``first`` is the place of an animation's first frame on the canvas: left, top,
    and the first column and row behind it.
    """

    width: int
    height: int
    frames: int
    exif: bytes
    xmp: bytes
    first: tuple[int, int, int, int] | None


def read_chunks(data: bytes) -> WebpChunks | Reject:
    """Walk the chunks of a file, which must be complete; bytes behind its end are ignored."""
    position, end = _RIFF_HEADER, 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        return Reject(Reason.TRUNCATED, f"{len(data)} of {end} bytes")
    bodies, frames = dict[bytes, bytes](), 0  # of each kind the first
    while position + 8 <= end:
        kind, size = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "little")
        bodies.setdefault(kind, data[position + 8 : min(position + 8 + size, end)])
        frames += kind == b"ANMF"
        position += 8 + size + size % 2
    width, height = next(filter(None, (_size(kind, body) for kind, body in bodies.items())), (0, 0))
    if not (width and height):
        return Reject(Reason.BROKEN, "no chunk tells the size of a picture")
    first = _box(bodies[b"ANMF"]) if frames else None
    return WebpChunks(width, height, max(frames, 1), bodies.get(b"EXIF", b""), bodies.get(b"XMP ", b""), first)


def _size(kind: bytes, body: bytes) -> tuple[int, int] | None:
    if kind == b"VP8X" and len(body) >= 10:
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8 " and len(body) >= 10 and body[3:6] == _START_CODE:
        return int.from_bytes(body[6:8], "little") & _SIDE, int.from_bytes(body[8:10], "little") & _SIDE
    if kind == b"VP8L" and len(body) >= 5 and body.startswith(_LOSSLESS):
        bits = int.from_bytes(body[1:5], "little")
        return (bits & _SIDE) + 1, (bits >> 14 & _SIDE) + 1
    return None


def _box(body: bytes) -> tuple[int, int, int, int]:
    left, top, width, height = (int.from_bytes(body[each : each + 3], "little") for each in (0, 3, 6, 9))
    return 2 * left, 2 * top, 2 * left + width + 1, 2 * top + height + 1

"""Read the chunks of a WebP file (RFC 9649, section 2) before libwebp allocates memory for the whole canvas."""

from dataclasses import dataclass

from etl.images.result import Reason, Reject

_RIFF_HEADER = 12  # "RIFF", the size of what follows, "WEBP"
_START_CODE = b"\x9d\x01\x2a"  # of a key frame: RFC 6386, section 9.1
_LOSSLESS = b"\x2f"  # RFC 9649, section 3.4
_SIDE = 0x3FFF  # the 14 bits of a side


@dataclass
class WebpChunks:
    """``width`` and ``height`` are those of the canvas; ``frames`` of an animation, else 1.

    ``exif`` and ``xmp`` may be empty. ``first`` is the place of an animation's first frame on the canvas: left, top,
    and the first column and row behind it.
    """

    width: int = 0
    height: int = 0
    frames: int = 0
    exif: bytes = b""
    xmp: bytes = b""
    first: tuple[int, int, int, int] | None = None

    def take(self, kind: bytes, body: bytes) -> None:
        """Add what a chunk contains; the first size that is found counts."""
        size = self._size(kind, body)
        if size and not self.width:
            self.width, self.height = size
        if kind == b"ANMF":
            left, top, width, height = (int.from_bytes(body[each : each + 3], "little") for each in (0, 3, 6, 9))
            self.first = self.first or (2 * left, 2 * top, 2 * left + width + 1, 2 * top + height + 1)
            self.frames += 1
        if kind == b"EXIF":
            self.exif = self.exif or body
        if kind == b"XMP ":
            self.xmp = self.xmp or body

    @staticmethod
    def _size(kind: bytes, body: bytes) -> tuple[int, int] | None:
        if kind == b"VP8X" and len(body) >= 10:
            return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
        if kind == b"VP8 " and len(body) >= 10 and body[3:6] == _START_CODE:
            return int.from_bytes(body[6:8], "little") & _SIDE, int.from_bytes(body[8:10], "little") & _SIDE
        if kind == b"VP8L" and len(body) >= 5 and body.startswith(_LOSSLESS):
            bits = int.from_bytes(body[1:5], "little")
            return (bits & _SIDE) + 1, (bits >> 14 & _SIDE) + 1
        return None


def read_chunks(data: bytes) -> WebpChunks | Reject:
    """Walk the chunks of a file, which must be complete; bytes behind its end are ignored."""
    found, position, end = WebpChunks(), _RIFF_HEADER, 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        return Reject(Reason.TRUNCATED, f"{len(data)} of {end} bytes")
    while position + 8 <= end:
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        found.take(data[position : position + 4], data[position + 8 : min(position + 8 + size, end)])
        position += 8 + size + size % 2
    if not (found.width and found.height):
        return Reject(Reason.BROKEN, "no chunk tells the size of a picture")
    found.frames = max(found.frames, 1)
    return found

"""Read the segments of a JPEG file before its pixels (ITU-T T.81, annex B), with EXIF, XMP, ICC and Adobe's."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from etl.images.result import Reason, Reject

SIGNATURE = b"\xff\xd8\xff"

MAX_SEGMENTS = 65_536

# of a segment: not fill, stuffing, TEM, RST0 to RST7 or SOI, which are not followed by a length
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
_EOI, _SOS, _COMMENT, _APP0, _APP1, _APP2, _APP14 = 0xD9, 0xDA, 0xFE, 0xE0, 0xE1, 0xE2, 0xEE
_JPEG_LS = 0xF7  # SOF55 of ITU-T T.87
_SEQUENTIAL = {0xC0, 0xC1}  # Huffman-coded, in one pass
_LOSSLESS = {0xC3, 0xC7, 0xCB, 0xCF}
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15; the others are DHT, JPG, DAC
_EXIF, _XMP, _PROFILE = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0", b"ICC_PROFILE\0"
_JFIF_BYTES = 14  # without a thumbnail
_IN_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # a marker but RST0 to RST7


@dataclass
class JpegSegments:
    """``components`` by pixel, ``scan`` is where the first scan begins.

    ``exif``, ``xmp`` and ``profile`` are empty if there are none.
    ``lossless`` is True if there is no DCT, so that the picture cannot be decoded at a smaller size.
    ``sequential`` is True if libjpeg needs one pass, and memory for a few rows only: the first scan has all components.
    ``bare`` is True if there are no metadata, no profile and no comment before the picture.
    """

    width: int = 0
    height: int = 0
    components: int = 0
    precision: int = 0
    scan: int = 0
    sequential: bool = False
    lossless: bool = False
    exif: bytes = b""
    xmp: bytes = b""
    parts: list[tuple[int, int, bytes]] = field(default_factory=list)
    bare: bool = True

    @property
    def profile(self) -> bytes:
        """The ICC profile's parts, each with its number and how many there are (ICC.1, B.4): empty unless whole."""
        parts = sorted(self.parts)
        whole = [(number, len(parts)) for number in range(1, len(parts) + 1)]
        return b"".join(body for *_, body in parts) if [(number, count) for number, count, _ in parts] == whole else b""

    def take(self, marker: int, body: bytes) -> None:
        """Add what a segment contains."""
        if marker in _FRAMES and len(body) >= 6 and not self.components:
            self.precision, self.components, self.sequential = body[0], body[5], marker in _SEQUENTIAL
            self.lossless = marker in _LOSSLESS
            self.height, self.width = int.from_bytes(body[1:3]), int.from_bytes(body[3:5])
        elif marker == _APP1 and body.startswith(_EXIF):
            self.exif = self.exif or body
        elif marker == _APP1 and body.startswith(_XMP):
            self.xmp = self.xmp or body
        elif marker == _APP2 and body.startswith(_PROFILE) and len(body) >= len(_PROFILE) + 2:
            number, count = body[len(_PROFILE) : len(_PROFILE) + 2]
            self.parts.append((number, count, body[len(_PROFILE) + 2 :]))
        if marker == _APP0:
            self.bare = self.bare and len(body) == _JFIF_BYTES
        elif _APP0 < marker <= _APP0 + 15 or marker == _COMMENT:
            self.bare = self.bare and marker == _APP14  # Adobe's has the colour space


def read_segments(data: bytes) -> JpegSegments | Reject:
    """Read the segments of a JPEG file up to its first scan."""
    found, position, segments = JpegSegments(), len(SIGNATURE) - 1, 0
    for marker, start, end in _walk(data):
        found.bare = found.bare and not data[position:start].strip(b"\xff")  # fill may stand anywhere
        position = end
        if marker in (_SOS, _EOI):
            found.scan = start
            found.sequential = found.sequential and data[start + 4 : start + 5] == bytes([found.components])
            return _checked(found)
        if marker == _JPEG_LS:
            return Reject(Reason.UNSUPPORTED, "a file of JPEG-LS")
        if end - start < 4:
            return Reject(Reason.BROKEN, f"a segment of {end - start - 2} bytes at offset {start}")
        found.take(marker, data[start + 4 : end])
        segments += 1
    if segments == MAX_SEGMENTS:
        return Reject(Reason.BROKEN, f"more than {MAX_SEGMENTS} segments before the first scan")
    return Reject(Reason.TRUNCATED, f"{len(data)} bytes, and no scan in them")


def without_profile(data: bytes) -> bytes:
    """Return the file without the segments of an ICC profile."""
    kept, position = [], 0
    for marker, start, end in _walk(data):
        if marker == _APP2 and data.startswith(_PROFILE, start + 4):
            kept.append(data[position:start])
            position = end
    return b"".join([*kept, data[position:]])


def without_gaps(data: bytes) -> bytes:
    """Return the file without the bytes between its segments before the first scan."""
    kept, position = [data[: len(SIGNATURE) - 1]], len(data)
    for _, start, position in _walk(data):
        kept.append(data[start:position])
    return b"".join([*kept, data[position:]])


def _walk(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, its offset, the offset of what follows) of up to `MAX_SEGMENTS` segments, to SOS or EOI.

    Bytes between segments are skipped, as by libjpeg.
    """
    position = len(SIGNATURE) - 1
    for _ in range(MAX_SEGMENTS):
        found = _MARKER.search(data, position)
        if found is None:
            return
        start, marker = found.start(), data[found.start() + 1]
        if marker in (_SOS, _EOI):
            yield marker, start, start + 2
            return
        if start + 4 > len(data):
            return
        position = start + 2 + int.from_bytes(data[start + 2 : start + 4])
        yield marker, start, position


def is_last_scan(data: bytes, scan: int) -> bool:
    """True if the file ends with the scan at offset ``scan``: there are no markers in its data but RST0 to RST7."""
    found = _IN_SCAN.search(data, scan + 2)
    return found is not None and found.start() == len(data) - 2 and data.endswith(b"\xff\xd9")


def _checked(found: JpegSegments) -> JpegSegments | Reject:
    if not (found.width and found.height and found.components):
        return Reject(Reason.BROKEN, f"a frame of {found.width}x{found.height}, {found.components} components")
    if found.precision != 8:
        return Reject(Reason.UNSUPPORTED, f"a JPEG of {found.precision} bits a sample")
    return found

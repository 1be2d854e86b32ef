"""Small pictures for a page, as data URIs."""

import base64
import io
import struct
import warnings
from dataclasses import dataclass

from PIL import Image, ImageFile

SIDE = 96  # pixels: drawn at half of that or less on fine screens
MAX_PIXELS = 50_000_000  # of a reject that is tried; a JPEG's after it was decoded at an eighth of its size
JPEG_QUALITY = 80
KEPT_BYTES = 4096  # a small picture of at most so many bytes goes in as it is

_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, KeyError, struct.error)


@dataclass(frozen=True)
class Picture:
    """A picture of a page. ``uri`` is None if it cannot be decoded."""

    uri: str | None
    width: int
    height: int
    caption: str
    alt: str

    @property
    def is_tiny(self) -> bool:
        """True if it is to be enlarged with its pixels kept sharp."""
        return max(self.width, self.height) <= SIDE // 2


def data_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def thumbnail(data: bytes, *, caption: str, alt: str) -> Picture:
    """A picture, at most `SIDE` pixels each way, of an image file; without a URI if it cannot be decoded."""
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data)) as image:
            warnings.simplefilter("ignore")
            kind = str(image.format).lower()
            if kind in ("jpeg", "png") and max(image.size) <= SIDE and len(data) <= KEPT_BYTES:
                image.load()  # it is whole
                return Picture(data_uri(data, kind), *image.size, caption, alt)
            return Picture(*_reduced(image), caption, alt)
    except (*_DAMAGE, Image.DecompressionBombError):
        return Picture(None, 0, 0, caption, alt)


def _reduced(image: ImageFile.ImageFile) -> tuple[str, int, int]:
    image.draft("RGB", (2 * SIDE, 2 * SIDE))
    if image.width * image.height > MAX_PIXELS:
        raise ValueError("too many pixels for a thumbnail")
    image.load()
    grey = image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")
    reduced = image.convert("L" if grey else "RGB")
    reduced.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    if max(reduced.size) <= SIDE // 2:
        reduced.save(buffer, "PNG")
        return data_uri(buffer.getvalue(), "png"), *reduced.size
    reduced.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return data_uri(buffer.getvalue(), "jpeg"), *reduced.size

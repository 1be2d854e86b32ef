"""What Pillow leaves as a file stores it, made plain: deep samples, a transparent colour, what no frame covers.

Samples that Pillow would decode by assumption are rejected here.
"""

from collections.abc import Iterator

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from etl.images import jpeg2000, tiff, webp
from etl.images.header import BMP, GIF, JPEG_2000, PNG, PNM, TIFF, WEBP
from etl.images.result import Reason, Reject

_WITHOUT_RANGE = ("I", "F", "LAB", "HSV")
_SHALLOW = {"L;2": 85, "L;4": 17}  # by what Pillow multiplies samples of 2 and 4 bits
_BAND_PIXELS = 1 << 18
_DEEP_COLOR = "RGB;16B"
_PREPARE = {TIFF: tiff.prepare, JPEG_2000: jpeg2000.check}


def load_known(image: ImageFile.ImageFile, data: bytes, format: str) -> Image.Image | Reject:
    """Decode ``image``, opened of ``data``: samples of 8 bits, or of 1, and alpha where something is transparent.

    Raises what Pillow and OpenCV raise of damage.
    """
    if format in _PREPARE and (reject := _PREPARE[format](image, data)):
        return reject
    tile = image.tile[0] if image.tile else None
    arguments = tile.args if tile else ""
    raw_mode = str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)
    image.load()
    if (corrected := _corrected(image, data, format)) is not None:
        return corrected
    if image.mode == "P" and image.palette is None:
        return Reject(Reason.BROKEN, "its palette is missing")
    if image.mode.startswith("I;16") or (image.mode == "I" and format in (PNG, PNM)):
        return _of_deep_gray(image, format, 12 if raw_mode == "I;12" else 16)
    if image.mode in _WITHOUT_RANGE:
        return Reject(Reason.UNSUPPORTED, f"samples of mode {image.mode} in a {format}")
    if (frame := _first_frame(tile, data, format)) and frame != (0, 0, *image.size):
        return _covered(image, frame)
    transparent = image.info.get("transparency")
    if raw_mode in _SHALLOW and isinstance(transparent, int):
        image.info["transparency"] = transparent * _SHALLOW[raw_mode]
    if raw_mode == _DEEP_COLOR and transparent is not None:
        image.putalpha(_deep_alpha(data))
    return image


def bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """A decoded image in bands of neighbouring rows, each with the number of its first row."""
    rows = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _corrected(image: ImageFile.ImageFile, data: bytes, format: str) -> Image.Image | None:
    """The image if it is of a kind that Pillow decodes a little differently from what the file means."""
    if format == JPEG_2000:
        return jpeg2000.scaled(image, data)
    if format == BMP and image.mode == "RGBA" and image.getchannel("A").getextrema() == (0, 0):
        return image.convert("RGB")  # programs leave the alpha unset; ImageMagick and browsers show such files opaque
    return image.convert("LA") if image.mode == "La" else None


def _of_deep_gray(image: ImageFile.ImageFile, format: str, bits: int) -> Image.Image:
    """The upper 8 of 12 or 16 bits; Pillow does not invert those of a TIFF whose white is 0."""
    inverted = format == TIFF and tiff.is_white_zero(image)
    transparent = image.info.get("transparency")
    found = Image.new("LA" if isinstance(transparent, int) else "L", image.size)
    for top, band in bands(image):
        samples = np.asarray(band).astype(np.uint32)
        if inverted:
            samples = 0xFFFF - samples
        gray = _as_image(samples >> bits - 8)
        if isinstance(transparent, int):
            gray = Image.merge("LA", (gray, _as_image((samples != transparent) * 255)))
        found.paste(gray, (0, top))
    return found


def _as_image(samples: npt.NDArray[np.uint32] | npt.NDArray[np.int_]) -> Image.Image:
    return Image.fromarray(samples.clip(0, 255).astype(np.uint8))


def _first_frame(tile: ImageFile._Tile | None, data: bytes, format: str) -> tuple[int, int, int, int] | None:
    """Where a GIF's, or a WebP animation's, lies on its screen: left, top, right, bottom."""
    if format == GIF and tile:
        return tile.extents
    chunks = webp.read_chunks(data) if format == WEBP else None
    return chunks.first if isinstance(chunks, webp.WebpChunks) else None


def _covered(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """A frame on a screen that is clear where the frame does not reach, as browsers show it."""
    screen = Image.new("RGBA", image.size)
    screen.paste(image.convert("RGBA").crop(box), box)
    return screen


def _deep_alpha(data: bytes) -> Image.Image:
    """The alpha of a PNG whose transparent colour has 16 bits a sample: of these Pillow keeps 8, OpenCV all."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.shape[2:] != (4,):
        raise ValueError("the transparent colour cannot be read")
    return _as_image(pixels[..., 3].astype(np.uint32) >> 8)

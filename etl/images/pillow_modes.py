"""Decode images by Pillow to samples of 8 bits: deep samples, transparent colours, areas without a frame.

Samples that Pillow would decode by an assumption are rejected here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImagePalette, TiffImagePlugin

from etl.images.containers import jpeg_2000, webp
from etl.images.header import BMP, GIF, JPEG_2000, PNG, PNM, TIFF, WEBP
from etl.images.result import Reason, Reject

_UNSUPPORTED_MODES = ("I", "F", "LAB", "HSV")
_SAMPLE_FACTORS = {"L;2": 85, "L;4": 17}  # the factors by which Pillow multiplies samples of 2 and 4 bits
_BAND_PIXELS = 1 << 18
_DEEP_COLOR, _DEEP_GRAY_ALPHA = "RGB;16B", "LA;16B"
# tags of TIFF 6.0, DNG 1.4 and Adobe's notes on TIFF
_SUBFILE, _OLD_SUBFILE, _PHOTOMETRIC, _PLANAR, _COLORS, _SUB_IFDS = 254, 255, 262, 284, 320, 330
_STRIP_SIZES, _SUBSAMPLING = 279, 530
_COMPRESSION, _WEBP, _CHANNELS, _MAX_PLANES = 259, 50001, 277, 4
_INK_SET, _SAMPLE_FORMAT, _DNG_VERSION = 332, 339, 50706
_REDUCED, _OLD_REDUCED = 1, 2
_WHITE_IS_ZERO, _YCBCR = 0, 6
_SEPARATE, _CMYK, _UNSIGNED = 2, 1, 1
_MISPLACED = ("LA", "La", "PA")  # in separate planes, where Pillow reads the second as green


def load_8_bits(image: ImageFile.ImageFile, data: bytes, format: str) -> Image.Image | Reject:
    """Decode ``image``, opened from ``data``: samples of 8 bits, or of 1, with alpha if something is transparent.

    Raises the exceptions of Pillow and OpenCV for damaged files.
    """
    if format in _PREPARE and (reject := _PREPARE[format](image, data)):
        return reject
    tile = image.tile[0] if image.tile else None
    arguments = tile.args if tile else ""
    raw_mode = str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)
    image.load()
    if (corrected := _corrected(image, data, format)) is not None:
        return corrected
    if raw_mode == _DEEP_GRAY_ALPHA:  # Pillow gives RGBA, to which a gray profile does not apply
        return image.convert("LA")
    if image.mode == "P" and image.palette is None:
        return Reject(Reason.BROKEN, "its palette is missing")
    if image.mode.startswith("I;16") or (image.mode == "I" and format in (PNG, PNM)):
        return _of_deep_gray(image, format, 12 if raw_mode == "I;12" else 16)
    if image.mode in _UNSUPPORTED_MODES:
        return Reject(Reason.UNSUPPORTED, f"samples of mode {image.mode} in a {format}")
    if (frame := _first_frame(tile, data, format)) and frame != (0, 0, *image.size):
        return _on_canvas(image, frame)
    transparent = image.info.get("transparency")
    if raw_mode in _SAMPLE_FACTORS and isinstance(transparent, int):
        image.info["transparency"] = transparent * _SAMPLE_FACTORS[raw_mode]
    if raw_mode == _DEEP_COLOR and transparent is not None:
        image.putalpha(_deep_alpha(data))
    return image


def bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Split a decoded image into bands of neighbouring rows, each with the number of its first row."""
    rows = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _corrected(image: ImageFile.ImageFile, data: bytes, format: str) -> Image.Image | None:
    """Return the corrected image if Pillow decodes files of its kind slightly wrong, else None."""
    if format == JPEG_2000:
        return jpeg_2000.scaled(image, data)
    if format == BMP and image.mode == "RGBA" and image.getchannel("A").getextrema() == (0, 0):
        return image.convert("RGB")  # programs leave the alpha unset; ImageMagick and browsers show such files opaque
    return image.convert("LA") if image.mode == "La" else None


def _of_deep_gray(image: ImageFile.ImageFile, format: str, bits: int) -> Image.Image:
    """Take the upper 8 of 12 or 16 bits, inverted for a TIFF whose white is 0, which Pillow does not do."""
    inverted = format == TIFF and _tags(image).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    transparent = image.info.get("transparency")
    found = Image.new("LA" if isinstance(transparent, int) else "L", image.size)
    for top, band in bands(image):
        samples = np.asarray(band).astype(np.uint32)
        if inverted:
            samples = 0xFFFF - samples
        gray = _gray_image(samples >> bits - 8)
        if isinstance(transparent, int):
            gray = Image.merge("LA", (gray, _gray_image((samples != transparent) * 255)))
        found.paste(gray, (0, top))
    return found


def _gray_image(samples: npt.NDArray[np.uint32] | npt.NDArray[np.int_]) -> Image.Image:
    return Image.fromarray(samples.clip(0, 255).astype(np.uint8))


def _first_frame(tile: ImageFile._Tile | None, data: bytes, format: str) -> tuple[int, int, int, int] | None:
    """Return the box of the first frame of a GIF or a WebP animation: left, top, right, bottom; None for others."""
    if format == GIF and tile:
        return tile.extents
    chunks = webp.read_chunks(data) if format == WEBP else None
    return chunks.first if isinstance(chunks, webp.WebpChunks) else None


def _on_canvas(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """Put the frame on a transparent canvas, as browsers do."""
    canvas = Image.new("RGBA", image.size)
    canvas.paste(image.convert("RGBA").crop(box), box)
    return canvas


def _deep_alpha(data: bytes) -> Image.Image:
    """Return the alpha of a PNG whose transparent colour has 16 bits per sample: Pillow keeps 8 of them, OpenCV all."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.shape[2:] != (4,):
        raise ValueError("the transparent colour cannot be read")
    return _gray_image(pixels[..., 3].astype(np.uint32) >> 8)


def _prepare_tiff(image: ImageFile.ImageFile, data: bytes) -> Reject | None:
    """Correct how Pillow decodes an opened TIFF, or reject one that it would decode wrong."""
    tags = _tags(image)
    if why := _camera_raw(image, data, tags) or _unknown_samples(image, tags):
        return Reject(Reason.UNSUPPORTED, why)
    is_subsampled = (
        tags.get(_PHOTOMETRIC) == _YCBCR and sum(tags.get(_STRIP_SIZES, ())) < 3 * image.width * image.height
    )
    if image.tile[0].codec_name == "raw" and (is_subsampled or tags.get(_PLANAR) == _SEPARATE):
        _read_by_libtiff(image)
    colors = tags.get(_COLORS, ())
    if image.mode == "P" and colors and max(colors) < 256:  # it has 8 bits; libtiff assumes that, too
        image.palette = ImagePalette.raw("RGB;L", bytes(colors))
    image.info.pop("xmp", None)  # otherwise Pillow applies its orientation, too
    return None


def _read_by_libtiff(image: ImageFile.ImageFile) -> None:
    """Use libtiff: Pillow's own decoder assumes 8 bits per sample in planes, and that YCbCr is not subsampled."""
    before, TiffImagePlugin.READ_LIBTIFF = TiffImagePlugin.READ_LIBTIFF, True
    try:
        image._setup()  # type: ignore[attr-defined]
    finally:
        TiffImagePlugin.READ_LIBTIFF = before


def _tags(image: ImageFile.ImageFile) -> Mapping[int, Any]:
    return dict(getattr(image, "tag_v2", {}))


def _camera_raw(image: ImageFile.ImageFile, data: bytes, tags: Mapping[int, Any]) -> str:
    reduced = tags.get(_SUBFILE, 0) & _REDUCED or tags.get(_OLD_SUBFILE) == _OLD_REDUCED
    if reduced and (_SUB_IFDS in tags or getattr(image, "n_frames", 1) > 1):
        return "its first picture is a thumbnail of another one, as in the raw files of cameras"
    return "the raw file of a camera" if _DNG_VERSION in tags or data[8:10] == b"CR" else ""


def _unknown_samples(image: ImageFile.ImageFile, tags: Mapping[int, Any]) -> str:
    if any(each != _UNSIGNED for each in tags.get(_SAMPLE_FORMAT, ())):
        return "samples that are not unsigned integers"
    if image.mode == "CMYK" and tags.get(_INK_SET, _CMYK) != _CMYK:
        return "inks that are not cyan, magenta, yellow and black"
    if tags.get(_PLANAR) == _SEPARATE and tags.get(_PHOTOMETRIC) == _YCBCR and tags.get(_SUBSAMPLING, (2, 2)) != (1, 1):
        return "subsampled YCbCr in separate planes"
    if tags.get(_COMPRESSION) == _WEBP:
        return "compression webp"
    if tags.get(_PLANAR) == _SEPARATE and tags.get(_CHANNELS, 1) > _MAX_PLANES:
        return f"{tags[_CHANNELS]} separate planes"
    if tags.get(_PLANAR) == _SEPARATE and image.mode in _MISPLACED:
        return f"samples of mode {image.mode} in separate planes"
    return ""


_PREPARE = {TIFF: _prepare_tiff, JPEG_2000: jpeg_2000.check}

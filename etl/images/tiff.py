"""TIFF files as Pillow opens them: what it would decode by assumption (TIFF 6.0; DNG 1.4; Adobe's TIFF notes)."""

from collections.abc import Mapping
from typing import Any

from PIL import ImageFile, ImagePalette, TiffImagePlugin

from etl.images.result import Reason, Reject

_SUBFILE, _OLD_SUBFILE, _PHOTOMETRIC, _PLANAR, _COLORS, _SUB_IFDS = 254, 255, 262, 284, 320, 330
_STRIP_SIZES = 279
_INK_SET, _SAMPLE_FORMAT, _DNG_VERSION = 332, 339, 50706
_REDUCED, _OLD_REDUCED = 1, 2
_WHITE_IS_ZERO, _YCBCR = 0, 6
_SEPARATE, _CMYK, _UNSIGNED = 2, 1, 1
_MISPLACED = ("LA", "La", "PA")  # of separate planes, Pillow takes the second for green


def prepare(image: ImageFile.ImageFile, data: bytes) -> Reject | None:
    """Correct how Pillow would unpack an opened TIFF, or say why it cannot be decoded rightly."""
    tags = _tags(image)
    if why := _camera_raw(image, data, tags) or _unknown_samples(image, tags):
        return Reject(Reason.UNSUPPORTED, why)
    is_subsampled = (
        tags.get(_PHOTOMETRIC) == _YCBCR and sum(tags.get(_STRIP_SIZES, ())) < 3 * image.width * image.height
    )
    if image.tile[0].codec_name == "raw" and (is_subsampled or tags.get(_PLANAR) == _SEPARATE):
        _read_by_libtiff(image)
    colors = tags.get(_COLORS, ())
    if image.mode == "P" and colors and max(colors) < 256:  # written with 8 bits, as libtiff finds out, too
        image.palette = ImagePalette.raw("RGB;L", bytes(colors))
    return None


def _read_by_libtiff(image: ImageFile.ImageFile) -> None:
    """Pillow's own decoder takes separate planes for 8 bits a sample, and YCbCr for as many samples of each kind."""
    before, TiffImagePlugin.READ_LIBTIFF = TiffImagePlugin.READ_LIBTIFF, True
    try:
        image._setup()  # type: ignore[attr-defined]
    finally:
        TiffImagePlugin.READ_LIBTIFF = before


def is_white_zero(image: ImageFile.ImageFile) -> bool:
    return _tags(image).get(_PHOTOMETRIC) == _WHITE_IS_ZERO


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
    if tags.get(_PLANAR) == _SEPARATE and image.mode in _MISPLACED:
        return f"samples of mode {image.mode} in separate planes"
    return ""

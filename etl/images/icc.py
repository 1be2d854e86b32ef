"""Convert images to sRGB by their profiles (ICC.1) with LittleCMS; make profiles for colours stated as numbers."""

import functools
import io
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

from etl.images.result import Reason, Reject

UNSEEN_LEVELS = 2  # a profile that changes no colour by more is taken for sRGB
KEPT_TRANSFORMS = 16
_STEPS = range(0, 256, 51)
_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}

# x and y of white, red, green and blue, by ColourPrimaries of ITU-T H.273
_D65, _SRGB = (0.3127, 0.3290), (0.64, 0.33, 0.30, 0.60, 0.15, 0.06)
_PRIMARIES: Mapping[int, Sequence[float]] = {
    1: (*_D65, *_SRGB),
    2: (*_D65, *_SRGB),  # not specified
    5: (*_D65, 0.64, 0.33, 0.29, 0.60, 0.15, 0.06),
    6: (*_D65, 0.630, 0.340, 0.310, 0.595, 0.155, 0.070),
    9: (*_D65, 0.708, 0.292, 0.170, 0.797, 0.131, 0.046),
    12: (*_D65, 0.680, 0.320, 0.265, 0.690, 0.150, 0.060),
}
# Exponents by TransferCharacteristics of ITU-T H.273. Video's curves (1, 6, 14, 15) are shown as sRGB's.
SRGB_CURVE = 0.0
_SRGB_PARAMETERS = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)  # IEC 61966-2-1
_CURVES = dict.fromkeys((1, 2, 6, 13, 14, 15), SRGB_CURVE) | {4: 2.2, 5: 2.8, 8: 1.0}
_D50 = np.array([0.9642, 1.0, 0.8249])
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])


def to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """Convert ``image``, of mode L, RGB or CMYK, to sRGB; unchanged if the profile makes no visible difference.

    A profile that is broken, or of another colour space than the image, is ignored.
    """
    transform = _transform(profile, image.mode)
    if transform is None:
        return image
    return ImageCms.applyTransform(image, transform) or image


@functools.lru_cache(KEPT_TRANSFORMS)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    try:
        own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if own.profile.xcolor_space.strip() != _SPACES[mode]:
            return None
        transform = ImageCms.buildTransform(own, ImageCms.createProfile("sRGB"), mode, "RGB")
        return None if _changes_nothing(transform, mode) else transform
    except MemoryError:
        raise
    except Exception:  # LittleCMS and Pillow raise any kind for a bad profile
        return None


def _changes_nothing(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """True if a grid of colours is not visibly changed."""
    if mode == "CMYK":
        return False
    grid = np.stack(np.meshgrid(*[list(_STEPS)] * 3), axis=-1).reshape(1, -1, 3).astype(np.uint8)
    colours = Image.fromarray(grid if mode == "RGB" else np.ascontiguousarray(grid[..., 0]))
    after = np.asarray(ImageCms.applyTransform(colours, transform)).astype(int)
    return bool(np.abs(after - np.asarray(colours.convert("RGB"))).max() <= UNSEEN_LEVELS)


def profile_of_codes(primaries: int, curve: int, is_gray: bool = False) -> bytes | Reject:
    """Make the profile for colours given by codes of ITU-T H.273; unknown ones, such as HDR, are rejected."""
    if primaries not in _PRIMARIES or curve not in _CURVES:
        what = "colours of primaries and transfer characteristics (ITU-T H.273)"
        return Reject(Reason.UNSUPPORTED, f"{what} {primaries}, {curve}")
    return make_profile(_CURVES[curve], _PRIMARIES[primaries], is_gray)


def make_profile(exponent: float, primaries: Sequence[float] = (), is_gray: bool = False) -> bytes:
    """Make the profile (ICC.1:2010) of a display; empty if the numbers are not colours.

    ``exponent`` is that of the curve from samples to light, or `SRGB_CURVE`; ``primaries`` are x and y of white, red,
    green and blue, sRGB's if there are none.
    """
    try:
        curve = _parametric(0, exponent) if exponent else _parametric(3, *_SRGB_PARAMETERS)
        if is_gray:
            return _pack_profile(b"GRAY", {b"wtpt": _xyz(_D50), b"kTRC": curve})
        columns = _colorants(np.array(primaries or _PRIMARIES[1]).reshape(4, 2)).T
        tags = {name + b"TRC": curve for name in (b"r", b"g", b"b")}
        tags |= {name + b"XYZ": _xyz(column) for name, column in zip((b"r", b"g", b"b"), columns, strict=True)}
        return _pack_profile(b"RGB ", {b"wtpt": _xyz(_D50)} | tags)
    except (np.linalg.LinAlgError, struct.error):
        return b""


def _colorants(primaries: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute the matrix from red, green and blue to XYZ of D50: SMPTE RP 177, adapted as in ICC.1:2010, annex E."""
    with np.errstate(all="ignore"):
        white, *colors = np.column_stack([primaries, 1 - primaries.sum(axis=1)]) / primaries[:, 1:]
        matrix = np.transpose(colors)
        matrix = matrix * np.linalg.solve(matrix, white)
        scale = (_BRADFORD @ _D50) / (_BRADFORD @ white)
    return np.linalg.inv(_BRADFORD) @ np.diag(scale) @ _BRADFORD @ matrix


def _pack_profile(space: bytes, tags: Mapping[bytes, bytes]) -> bytes:
    offset, table, body = 132 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, element in tags.items():
        table += struct.pack(">4sII", name, offset + len(body), len(element))
        body += element
    head = struct.pack(">I4xI4s4s4s12x4s28x", offset + len(body), 0x04200000, b"mntr", space, b"XYZ ", b"acsp")
    return head + _fixed(*_D50) + bytes(48) + table + body


def _parametric(kind: int, *parameters: float) -> bytes:
    return b"para" + struct.pack(">4xH2x", kind) + _fixed(*parameters)


def _xyz(color: npt.NDArray[np.float64]) -> bytes:
    return b"XYZ " + bytes(4) + _fixed(*color)


def _fixed(*values: float) -> bytes:
    """s15Fixed16Number. Raises struct.error if a value has no such number."""
    if not np.isfinite(values).all():
        raise struct.error("not a number")
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))

"""Colour profiles (ICC.1) to sRGB, by LittleCMS."""

import functools
import io

import numpy as np
from PIL import Image, ImageCms

UNSEEN_LEVELS = 2  # a profile that changes no colour by more is sRGB under another name
KEPT_TRANSFORMS = 16
_STEPS = range(0, 256, 51)
_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}


def to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """``image``, of mode L, RGB or CMYK, in sRGB: RGB, or as it is where the profile changes nothing that is seen.

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
    except Exception:  # whatever LittleCMS and Pillow have against it
        return None


def _changes_nothing(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """Whether a grid of colours stays as it is."""
    if mode == "CMYK":
        return False
    grid = np.stack(np.meshgrid(*[list(_STEPS)] * 3), axis=-1).reshape(1, -1, 3).astype(np.uint8)
    colours = Image.fromarray(grid if mode == "RGB" else np.ascontiguousarray(grid[..., 0]))
    after = np.asarray(ImageCms.applyTransform(colours, transform)).astype(int)
    return bool(np.abs(after - np.asarray(colours.convert("RGB"))).max() <= UNSEEN_LEVELS)

"""The table of image files: every kind that real image sets contain, small, the same in every run."""

from functools import cache

from tests.lib.pictures.bad import bad_pictures
from tests.lib.pictures.base import Picture
from tests.lib.pictures.bmp import bmp_pictures, pnm_pictures
from tests.lib.pictures.gif import gif_pictures, other_pictures, webp_pictures
from tests.lib.pictures.jpeg import jpeg_pictures
from tests.lib.pictures.png import png_pictures
from tests.lib.pictures.tiff import tiff_pictures

_OF = {
    "jpeg": jpeg_pictures,
    "png": png_pictures,
    "gif": gif_pictures,
    "webp": webp_pictures,
    "others": other_pictures,
    "bmp": bmp_pictures,
    "pnm": pnm_pictures,
    "tiff": tiff_pictures,
}
FORMATS = (*_OF, "rejects")


@cache
def pictures_of(format: str) -> dict[str, Picture]:
    """The pictures of one of `FORMATS`, by name."""
    if format in _OF:
        return {picture.name: picture for picture in _OF[format]()}
    whole = {name: picture.data for each in _OF for name, picture in pictures_of(each).items()}
    return {picture.name: picture for picture in bad_pictures(whole)}


@cache
def pictures() -> dict[str, Picture]:
    """All pictures, by name."""
    return {name: picture for format in FORMATS for name, picture in pictures_of(format).items()}

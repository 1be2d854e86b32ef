"""The table of image files: every kind that real image sets hold, small, made by this project, the same in every run.

A file's name means nothing: pictures have names only so that tests can tell them apart. So a PNG that is called .JPEG,
as one of ImageNet's is, a JPEG that is called .png and a GIF that is called .jpg are the same rows as without.
"""

from collections.abc import Iterator
from functools import cache

from tests.lib.pictures.bad import bad_pictures
from tests.lib.pictures.base import Picture
from tests.lib.pictures.bmp import bmp_pictures, pnm_pictures
from tests.lib.pictures.gif import gif_pictures, other_pictures, webp_pictures
from tests.lib.pictures.jpeg import jpeg_pictures
from tests.lib.pictures.png import png_pictures
from tests.lib.pictures.tiff import tiff_pictures


@cache
def pictures() -> dict[str, Picture]:
    """All pictures, by name."""
    known = {picture.name: picture for picture in _of_a_format()}
    whole = {name: picture.data for name, picture in known.items()}
    return known | {picture.name: picture for picture in bad_pictures(whole)}


def _of_a_format() -> Iterator[Picture]:
    yield from jpeg_pictures()
    yield from png_pictures()
    yield from gif_pictures()
    yield from webp_pictures()
    yield from other_pictures()
    yield from bmp_pictures()
    yield from pnm_pictures()
    yield from tiff_pictures()

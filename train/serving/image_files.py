"""Image files to classify, in places of any kind. Imports no TensorFlow."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from etl.errors import UsageError
from etl.images.config import NormalizeConfig
from etl.images.header import AVIF, JPEG, JPEG_2000, PNM, TIFF
from etl.images.normalize import read_limited_header
from etl.images.result import Reason, Reject
from etl.sources.fields import is_visible
from etl.sources.folder import walk
from etl.storage.place import Place, open_place

_UNKNOWN = (AVIF, JPEG_2000, PNM, TIFF)  # to TensorFlow
_END = b"\xff\xd9"  # EOI of ITU-T T.81, B.1.1.3: no data of a scan look like it


@dataclass(frozen=True)
class ImageFile:
    """A file that is taken for an image, and its name as the user gave it."""

    name: str
    place: Place


def find_images(words: Iterable[str]) -> list[ImageFile]:
    """The files that ``words`` name, paths or URIs, and those below folders, sorted by path, hidden ones apart.

    Raises UsageError if there is no such file or folder, or a folder has none.
    """
    return [image for word in words for image in _find(word)]


def _find(word: str) -> Iterator[ImageFile]:
    place = open_place(word)
    if not place.exists():
        raise UsageError(f"{word}: no such file or folder")
    if place.info().is_file:
        yield ImageFile(word, place)
        return
    names = sorted(name for name, info in walk(place) if info.size is not None and is_visible(name))
    if not names:
        raise UsageError(f"{word} has no files; give images, or a folder of images")
    for name in names:
        yield ImageFile(f"{word.rstrip('/')}/{name}", place / name)


def reason_against(data: bytes, config: NormalizeConfig) -> Reject | None:
    """Why a file is not an image that an export with ``config`` takes, by its header."""
    header = read_limited_header(data, config)
    if isinstance(header, Reject):
        return header
    if header.format in _UNKNOWN:
        return Reject(Reason.UNSUPPORTED, f"{header.format}, which TensorFlow cannot decode; make it a JPEG or PNG")
    if header.format == JPEG and data.find(_END, header.offset) < 0:
        return Reject(Reason.TRUNCATED, f"{len(data)} bytes, and its last scan has no end")
    return config.limits.check(header.width, header.height, header.frames)

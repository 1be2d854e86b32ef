"""The interface of a source of raw images: a list of its images, their classes, and their bytes on request.

A source lists its images in a fixed order with their sizes before it reads their bytes, so that packs can be planned.
Known classes keep their labels, even if no image is left of them; new ones come after them.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from pyarrow import fs

from etl.errors import DataError, UsageError
from etl.storage.place import Place

_DECIDING = ("split_folders", "image_column", "label_column", "split_column", "key_column")
SOURCE_OPTIONS = (*_DECIDING, "follow_links")  # fields of `SourceOptions` that are options of the same names

Columns = tuple[tuple[str, str], ...]

MAX_WHOLE_BYTES = 16 << 20  # of an image file that is held in memory as it is read
Content = bytes | Iterator[bytes]  # of an image file: whole, or piece by piece, which can be read once


class SourceImage(NamedTuple):  # a frozen dataclass takes twice as long to make
    """One image of a source, not read yet. ``version`` changes when its file is written again; see `version_of`.

    ``columns`` are its further values, (name, value) by name; None if there are none.
    ``position`` is where its bytes are: the number of a file of the source, and an offset or a row in it.
    """

    key: str
    label: int
    split: str | None
    size_bytes: int
    version: int = 0
    columns: Columns | None = None
    position: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class SourceOptions:
    """The user's options for reading a source.

    ``known`` are the classes that keep their labels; ``classes`` (if given) are all that there may be. The columns
    are those of a list, a Parquet file or .json members, None for the default names. ``follow_links`` allows links
    that lead out of the source.
    """

    split_folders: bool = False
    image_column: str | None = None
    label_column: str | None = None
    split_column: str | None = None
    key_column: str | None = None
    classes: tuple[str, ...] | None = None
    follow_links: bool = False
    known: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The options that decide the packs, for markers: without ``known`` and ``follow_links``."""
        return {name: getattr(self, name) for name in _DECIDING} | {"classes": self.classes and list(self.classes)}


@dataclass(frozen=True)
class LargeFile:
    """A tar file, or a Parquet file with images in ``column``; a position in it is an offset, or a row.

    ``listed`` is what the file was when its images were listed.
    """

    place: Place
    listed: fs.FileInfo
    column: str | None = None


class Source(ABC):
    """A source that `etl.sources.detect.open_source` returns; reading ``images`` is fastest in their order."""

    kind: ClassVar[str]
    supported_options: ClassVar[tuple[str, ...]] = ()  # fields of `SourceOptions`, besides classes
    images_are: ClassVar[str] = "files of their own"  # if they cannot be left where they are
    classes: list[str]
    images: list[SourceImage]
    skipped: int = 0
    is_sequential: bool = False  # True if an image is reached only through those before it in its file
    pixels: dict[str, int] | None = None  # height, width and channels of all images, if the source states one for all

    def large_files(self) -> list[LargeFile]:
        """The files that contain the images, by the numbers in their positions.

        Raises UsageError if images cannot be read from where they are.
        """
        raise in_place_error(f"the images are {self.images_are}")

    @abstractmethod
    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        """The bytes of these image files, which are in the order of ``self.images``, each once.

        One of more than `MAX_WHOLE_BYTES` may come in pieces, to be taken before the next image is asked for.
        May be called in several threads at once. Raises DataError if a file changed since it was listed.
        """


def change_error(file: Place) -> DataError:
    """The error if a file of the source is not what it was when it was listed."""
    return DataError(f"{file} changed while it was read; run again when nobody writes there")


def version_of(listed: fs.FileInfo) -> int:
    """A number that changes with the time of change of a file with many images, or with its size."""
    return int(listed.mtime_ns + listed.size)


def require_same(file: Place, listed: fs.FileInfo) -> None:
    """Raise DataError if a file is gone, or has not the size or the time of change that it was listed with."""
    info = file.info()
    if (info.size, info.mtime_ns) != (listed.size, listed.mtime_ns):
        raise change_error(file)


def in_place_error(reason: str) -> UsageError:
    """The error if images cannot be left where they are, for this reason."""
    return UsageError(f"--in-place is for plain tar files and Parquet files, but {reason}; leave it out")


def reject_unsupported_options(options: SourceOptions, source: type[Source], place: Place) -> None:
    """Raise UsageError for an option that does not apply to this kind of source."""
    for name in SOURCE_OPTIONS:
        if getattr(options, name) and name not in source.supported_options:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} does not apply to a source of the kind {source.kind!r} ({place}); remove it")


def fingerprint(images: Iterable[SourceImage], classes: list[str]) -> str:
    """SHA-256 of the images' keys, labels, splits, sizes and columns."""
    digest = hashlib.sha256(repr(classes).encode())
    for image in images:
        columns = image.columns or ""
        text = f"{image.key}\0{image.label}\0{image.split}\0{image.size_bytes}\0{0}\0{columns}\n"  # the 0 is reserved
        digest.update(text.encode())
    return digest.hexdigest()


def reject_duplicates(keys: Sequence[str], where: Callable[[int], str]) -> None:
    """Raise UsageError if a key comes twice; ``where`` gives the place of the key of a number, for the message."""
    seen: dict[str, int] = {}
    for number, key in enumerate(keys):
        if (first := seen.setdefault(key, number)) != number:
            raise UsageError(f"the key {key} comes twice: in {where(first)} and in {where(number)}; leave one of them")

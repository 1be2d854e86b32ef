"""Where raw images come from: a folder per class, or IDX files. A source lists its images, and reads each when asked.

Both know their images in a fixed order (by key) and by sizes, so that packs can be laid out before a byte is read.
Classes that are known already keep their labels, even where no image is left of them; new ones come after them.
"""

import gzip
import hashlib
import io
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from pyarrow import fs

from etl.errors import DataError, UsageError
from etl.storage import Place

_SPLITS_BY_FOLDER = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
_IDX_IMAGES = re.compile(r"(?P<stem>.*?)[-_.]?images[-_.]idx(?P<dimensions>[34])-ubyte(?P<zip>\.gz)?")
_IDX_SPLITS = {"train": "train", "t10k": "test", "test": "test", "val": "validation", "validation": "validation"}
_IDX_UBYTE = 0x08
_MOST_DEFLATED = 1032  # bytes that deflate can make of one (zlib's technical details)


@dataclass(frozen=True)
class SourceImage:
    """One image of a source, not read yet. ``version`` changes when a file is written again (its time of change).

    ``columns`` are what a table of the user's says of it, (name, value) by name; None where it says nothing.
    """

    key: str
    label: int
    split: str | None
    size_bytes: int
    version: int = 0
    columns: tuple[tuple[str, str], ...] | None = None


class Source(Protocol):
    """What `open_source` gives."""

    kind: str
    classes: list[str]
    images: list[SourceImage]
    skipped: int

    @property
    def pixels(self) -> dict[str, int] | None:
        """Height, width and channels that all images share, where the source states them."""

    def read(self, image: SourceImage) -> bytes:
        """The image file's bytes. Raises DataError where they changed since they were listed."""
        ...


def open_source(place: Place, split_folders: bool = False, known: Sequence[str] = ()) -> Source:
    """The source in this folder, by what it holds; its classes begin with those that are ``known``.

    Raises UsageError where there is no such folder or nothing in it that is a source.
    """
    info = place.info()
    if info.type == fs.FileType.NotFound:
        raise UsageError(f"{place}: no such folder; give a folder with a folder per class, or with IDX files")
    if info.type != fs.FileType.Directory:
        raise UsageError(f"{place} is a file; give the folder that holds the images")
    if any(_IDX_IMAGES.fullmatch(child.base_name) for child in place.children()):
        return IdxSource(place, known)
    return FolderSource(place, split_folders, known)


def fingerprint(images: list[SourceImage], classes: list[str], versions: bool) -> str:
    """SHA-256 of what the images are called, how labelled, how large, and of their columns (and their versions)."""
    digest = hashlib.sha256(repr(classes).encode())
    for image in images:
        version = image.version if versions else 0
        columns = image.columns or ""
        told = f"{image.key}\0{image.label}\0{image.split}\0{image.size_bytes}\0{version}\0{columns}\n"
        digest.update(told.encode())
    return digest.hexdigest()


class FolderSource:
    """A folder with a folder per class; an image's key is its path below the source.

    With ``split_folders`` the first level names the split and the second the class. Hidden files, and files outside a
    class's folder, are skipped and counted; every other file is taken for an image.
    """

    kind = "folder"
    pixels = None

    def __init__(self, place: Place, split_folders: bool = False, known: Sequence[str] = ()) -> None:
        self._place = place
        self._split_folders = split_folders
        files = list(_walk(place, ()))
        located = [(self._locate(info), info) for info in files]
        found = [
            (where, info)
            for where, info in located
            if where is not None and _visible(where[2]) and info.type == fs.FileType.File
        ]
        self.skipped = len(files) - len(found)
        if not found:
            example = f"{place}/train/CLASS/IMAGE.jpg" if split_folders else f"{place}/CLASS/IMAGE.jpg"
            raise UsageError(f"no images in {place}; expected files such as {example}")
        names = sorted({name for (_, name, _), _ in found})
        self._refuse_splits_as_classes(names)
        self.classes = _grown(known, names)
        labels = {name: label for label, name in enumerate(self.classes)}
        self.images = sorted(
            (
                SourceImage(key, labels[name], split or None, info.size, info.mtime_ns)
                for (split, name, key), info in found
            ),
            key=lambda image: image.key,
        )

    def read(self, image: SourceImage) -> bytes:
        data = (self._place / image.key).read_bytes()
        if len(data) != image.size_bytes:
            raise DataError(f"{self._place / image.key} changed while it was read; run again when nobody writes there")
        return data

    def _locate(self, info: fs.FileInfo) -> tuple[str, str, str] | None:
        """(split or '', class, key) of a file; None for one that lies in no class's folder."""
        key = info.path[len(self._place.path.rstrip("/")) + 1 :]
        folders = key.split("/")[:-1]
        if not self._split_folders:
            return ("", folders[0], key) if folders else None
        if len(folders) < 2:
            return None
        if folders[0] not in _SPLITS_BY_FOLDER:
            if not _visible(key):
                return None
            raise UsageError(
                f"{self._place}/{folders[0]} names no split; with --split-folders the first level is one of"
                f" {', '.join(_SPLITS_BY_FOLDER)}"
            )
        return _SPLITS_BY_FOLDER[folders[0]], folders[1], key

    def _refuse_splits_as_classes(self, names: list[str]) -> None:
        if not self._split_folders and len(names) > 1 and set(names) <= set(_SPLITS_BY_FOLDER):
            raise UsageError(
                f"the folders of {self._place} ({', '.join(names)}) look like splits, not classes; give --split-folders"
            )


class IdxSource:
    """IDX files in pairs of images and labels, plain or gzip, each pair with a split of its own (train, t10k).

    Format: http://yann.lecun.com/exdb/mnist/ (big-endian magic number, sizes, then uint8 values). Images become PGM or
    PPM files: a short header and the pixels as they are. A class's name is its label's number.
    """

    kind = "idx"

    def __init__(self, place: Place, known: Sequence[str] = ()) -> None:
        names = [info.base_name for info in place.children()]
        matches = [match for name in names if (match := _IDX_IMAGES.fullmatch(name))]
        self._pixels: dict[str, npt.NDArray[np.uint8]] = {}
        labels: dict[str, npt.NDArray[np.uint8]] = {}
        for match in matches:
            label_name = match[0].replace("images", "labels").replace(f"idx{match['dimensions']}", "idx1")
            if label_name not in names:
                raise UsageError(f"{place / match[0]} has no labels beside it; expected {label_name}")
            images, values = _read_idx(place / match[0]), _read_idx(place / label_name)
            if images.ndim not in (3, 4) or values.ndim != 1 or len(images) != len(values):
                raise DataError(
                    f"{place / match[0]} has shape {images.shape}, its labels {values.shape};"
                    " they do not belong together"
                )
            self._pixels[match["stem"]], labels[match["stem"]] = images, values
        shapes = {images.shape[1:] for images in self._pixels.values()}
        if len(shapes) != 1:
            raise DataError(f"the IDX files of {place} hold images of different shapes: {sorted(shapes)}")
        height, width, channels = (*shapes.pop(), 1)[:3]
        self.pixels = {"height": height, "width": width, "channels": channels}
        numbers = sorted({int(value) for values in labels.values() for value in np.unique(values)})
        if not numbers:
            raise UsageError(f"no images in {place}; its IDX files are empty")
        self.classes = _grown(known, list(map(str, numbers)))
        self.skipped = len(names) - 2 * len(matches)
        ids = {number: self.classes.index(str(number)) for number in numbers}
        self.images = sorted(self._list(labels, ids), key=lambda image: image.key)

    def read(self, image: SourceImage) -> bytes:
        stem, _, name = image.key.rpartition("/")
        return self._file_header() + self._pixels[stem][int(name.split(".")[0])].tobytes()

    def _list(self, labels: dict[str, npt.NDArray[np.uint8]], ids: dict[int, int]) -> Iterator[SourceImage]:
        assert self.pixels is not None
        suffix = "pgm" if self.pixels["channels"] == 1 else "ppm"
        size = len(self._file_header()) + self.pixels["height"] * self.pixels["width"] * self.pixels["channels"]
        for stem, values in labels.items():
            # the version follows the pixels, for there is no file whose time of change could
            version = zlib.crc32(self._pixels[stem].tobytes())
            for position, value in enumerate(values):
                yield SourceImage(
                    f"{stem}/{position:05d}.{suffix}", ids[int(value)], _IDX_SPLITS.get(stem), size, version
                )

    def _file_header(self) -> bytes:
        assert self.pixels is not None
        magic = "P5" if self.pixels["channels"] == 1 else "P6"
        return f"{magic} {self.pixels['width']} {self.pixels['height']} 255\n".encode()


def _grown(known: Sequence[str], names: Sequence[str]) -> list[str]:
    return [*known, *(name for name in names if name not in set(known))]


def _read_idx(place: Place) -> npt.NDArray[np.uint8]:
    data = place.read_bytes()
    if place.path.endswith(".gz"):
        data = _unzip_idx(place, data)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _IDX_UBYTE:
        raise DataError(f"{place} is no IDX file of bytes: it starts with {data[:4].hex()}")
    shape = _idx_shape(data)
    start = 4 + 4 * data[3]
    if len(shape) < data[3] or len(data) - start != math.prod(shape):
        raise DataError(
            f"{place} is truncated or too long: its header promises the shape {shape}, at least"
            f" {max(len(data) - start, 0)} bytes follow"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def _idx_shape(data: bytes) -> tuple[int, ...]:
    """The sizes that follow the magic number, as far as they are there whole."""
    sizes = data[4 : 4 + 4 * data[3]]
    return tuple(int.from_bytes(sizes[each : each + 4]) for each in range(0, len(sizes) - 3, 4))


def _unzip_idx(place: Place, data: bytes) -> bytes:
    """What a gzip file holds, though of values no more than the header promises and one; none if it promises too many.

    A small file may unpack to more than memory holds.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            header = stream.read(4)
            header += stream.read(4 * header[3]) if len(header) == 4 else b""
            promised = math.prod(_idx_shape(header)) if len(header) >= 4 else 0
            return header + (stream.read(promised + 1) if promised <= _MOST_DEFLATED * len(data) else b"")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{place} is no whole gzip file: {error}") from None


def _walk(place: Place, above: tuple[str, ...]) -> Iterator[fs.FileInfo]:
    """Everything below a folder that is no folder itself; links to folders are followed, but not in circles."""
    if place.real_path in above:
        raise UsageError(f"{place} is a link back to a folder that it lies in; remove it")
    for info in place.children():
        if info.type == fs.FileType.Directory:
            yield from _walk(place / info.base_name, (*above, place.real_path))
        else:
            yield info


def _visible(key: str) -> bool:
    return not any(part.startswith(".") for part in key.split("/"))

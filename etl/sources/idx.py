"""IDX files in pairs of images and labels."""

import gzip
import io
import math
import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from etl.errors import DataError, UsageError
from etl.progress import log
from etl.sources.base import Source, SourceImage, SourceOptions
from etl.sources.fields import checked_key, is_visible, number_labels, split_of
from etl.storage.place import Place

IDX_ENDINGS = ("-ubyte", "-ubyte.gz")
IDX_IMAGES = re.compile(r"(?P<stem>.*?)[-_.]?images[-_.]idx(?P<dimensions>[34])-ubyte(?P<zip>\.gz)?")
_IDX_UBYTE = b"\0\0\x08"
_MAX_DEFLATED = 1032  # bytes that one byte of gzip can give (RFC 1951: a match of 258 takes 2 bits)
_MAX_DIMENSIONS = 4  # count, height, width, channels


class IdxSource(Source):
    """IDX files in pairs of images and labels, plain or gzip; the name of a pair gives its split (train, t10k).

    Format: http://yann.lecun.com/exdb/mnist/ (big-endian magic number, sizes, then uint8 values). Images become PGM or
    PPM files: a short header and the pixels as they are. The name of a class is the number of its label, or the one of
    the user's classes that has this number.
    """

    kind = "idx"
    images_are = "arrays"

    def __init__(self, place: Place, options: SourceOptions) -> None:
        files = [info.base_name for info in place.children() if info.is_file]
        names = [name for name in files if is_visible(name)]
        matches = [match for name in names if (match := IDX_IMAGES.fullmatch(name))]
        self._pixels: dict[str, npt.NDArray[np.uint8]] = {}
        labels: dict[str, npt.NDArray[np.uint8]] = {}
        for match in matches:
            if match["stem"] in labels:
                same = ", ".join(each[0] for each in matches if each["stem"] == match["stem"])
                raise UsageError(f"{place} has the images of a pair more than once: {same}. Leave one of them")
            ending = match[0].removeprefix(match["stem"]).replace("images", "labels")
            label_name = match["stem"] + ending.replace(f"idx{match['dimensions']}", "idx1")
            if label_name not in names:
                raise UsageError(f"{place / match[0]} has no labels beside it; expected {label_name}")
            images, values = _read_idx(place / match[0]), _read_idx(place / label_name)
            if images.ndim not in (3, 4) or values.ndim != 1 or len(images) != len(values):
                raise DataError(
                    f"{place / match[0]} has shape {images.shape}, its labels {values.shape};"
                    " they do not belong together"
                )
            checked_key(f"{match['stem']}/00000.pgm", str(place / match[0]))
            self._pixels[match["stem"]], labels[match["stem"]] = images, values
        shapes = {images.shape[1:] for images in self._pixels.values()}
        if len(shapes) != 1:
            raise DataError(f"the IDX files of {place} have images of different shapes: {sorted(shapes)}")
        height, width, channels = (*shapes.pop(), 1)[:3]
        if channels not in (1, 3):
            raise DataError(
                f"the images of {place} have {channels} channels, by their last size; write 1 (gray) or 3 (RGB)"
            )
        self.pixels = {"height": height, "width": width, "channels": channels}
        numbers = sorted({int(value) for values in labels.values() for value in np.unique(values)})
        if not numbers:
            raise UsageError(f"no images in {place}; its IDX files are empty")
        self.classes, ids = number_labels(map(str, numbers), options, place)
        self.skipped = len(files) - 2 * len(matches)
        self.images = sorted(self._list(labels, ids), key=lambda image: image.key)
        if not any(map(_split_of, labels)):
            found = ", ".join(sorted(labels))
            log("ingest", f"no pair of {place} has train, t10k, test or validation in its name: {found}")

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[bytes]:
        """Return PGM or PPM files of the images."""
        for image in images:
            stem, _, name = image.key.rpartition("/")
            yield self._file_header() + self._pixels[stem][int(name.split(".")[0])].tobytes()

    def _list(self, labels: dict[str, npt.NDArray[np.uint8]], ids: dict[str, int]) -> Iterator[SourceImage]:
        assert self.pixels is not None
        suffix = "pgm" if self.pixels["channels"] == 1 else "ppm"
        size = len(self._file_header()) + self.pixels["height"] * self.pixels["width"] * self.pixels["channels"]
        for stem, values in labels.items():
            # of the content, because an image is not a file with a time of change
            version = zlib.crc32(self._pixels[stem].data)
            for position, value in enumerate(values):
                yield SourceImage(f"{stem}/{position:05d}.{suffix}", ids[str(value)], _split_of(stem), size, version)

    def _file_header(self) -> bytes:
        assert self.pixels is not None
        magic = "P5" if self.pixels["channels"] == 1 else "P6"
        return f"{magic} {self.pixels['width']} {self.pixels['height']} 255\n".encode()


def _split_of(stem: str) -> str | None:
    """The split that the name of a pair has as a word; MNIST's own for the test split is t10k."""
    return split_of(re.sub(r"\bt10k\b", "test", stem.lower().replace("_", "-")))


def _read_idx(place: Place) -> npt.NDArray[np.uint8]:
    data = place.read_bytes()
    if place.path.endswith(".gz"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:  # it may unpack to more than fits in memory
                header = stream.read(4 + 4 * _MAX_DIMENSIONS)
                promised = math.prod(_shape_in(header))
                data = header + (stream.read(promised + 1) if promised <= _MAX_DEFLATED * len(data) else b"")
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{place} is not a complete gzip file: {error}") from None
    if len(data) < 4 or data[:3] != _IDX_UBYTE or data[3] > _MAX_DIMENSIONS:
        raise DataError(f"{place} is not an IDX file of images or labels: it starts with {data[:4].hex()}")
    start = 4 + 4 * data[3]
    shape = _shape_in(data)
    if len(data) < start or len(data) - start != math.prod(shape):
        raise DataError(
            f"{place} is truncated or too long: its header promises the shape {shape}, at least"
            f" {max(len(data) - start, 0)} bytes follow"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def _shape_in(data: bytes) -> tuple[int, ...]:
    """The sizes after the magic number; fewer if the data ends before."""
    sizes = data[4 : 4 + 4 * data[3]] if len(data) > 3 else b""
    return tuple(np.frombuffer(sizes, ">u4", len(sizes) // 4).tolist())

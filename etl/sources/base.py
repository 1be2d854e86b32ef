"""The interface of a source of raw images: a list of its images, their classes, and their bytes on request.

A source lists its images in a fixed order with their sizes before it reads their bytes, so that packs can be planned.
Known classes keep their labels, even if no image is left of them; new ones come after them.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from unicodedata import normalize

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from etl.errors import UsageError
from etl.storage.place import Place

SPLITS_BY_WORD = {
    "train": "train",
    "training": "train",
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}

_DECIDING = ("split_folders", "image_column", "label_column", "split_column", "key_column")
_NOT_SUPPORTED_BY_ALL = (*_DECIDING, "follow_links")

Columns = tuple[tuple[str, str], ...]

MAX_WHOLE_BYTES = 16 << 20  # of an image file that is held in memory as it is read
Content = bytes | Iterator[bytes]  # of an image file: whole, or piece by piece, which can be read once


@dataclass(frozen=True, slots=True)
class SourceImage:
    """One image of a source, not read yet. ``version`` changes when its file is written again (its time of change).

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


class NotInPlaceError(UsageError):
    """The images of this source cannot be left where they are."""

    def __init__(self, why: str) -> None:
        super().__init__(f"--in-place is for plain tar files and Parquet files, and of this source {why}; leave it out")


@dataclass(frozen=True)
class LargeFile:
    """A tar file, or a Parquet file with images in ``column``; a position in it is an offset, or a row."""

    place: Place
    column: str | None = None


class Source(Protocol):
    """A source that `etl.sources.open_source` returns; reading ``images`` is fastest in their order."""

    kind: str
    supported_options: ClassVar[tuple[str, ...]]  # fields of `SourceOptions`, besides classes
    classes: list[str]
    images: list[SourceImage]
    skipped: int
    is_sequential: bool  # True if an image is reached only through those before it in its file

    @property
    def pixels(self) -> dict[str, int] | None:
        """Height, width and channels that all images share, if the source states them."""

    def large_files(self) -> list[LargeFile]:
        """The files that hold the images, by the numbers in their positions.

        Raises UsageError if images cannot be read from where they lie.
        """
        ...

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        """The bytes of these image files, in their order; fastest in the order of ``self.images``.

        One of more than `MAX_WHOLE_BYTES` may come in pieces, to be taken before the next image is asked for.
        May be called in several threads at once. Raises DataError if a file changed since it was listed.
        """
        ...


def reject_unsupported_options(options: SourceOptions, source: type[Source], place: Place) -> None:
    """Raise UsageError for an option that does not apply to this kind of source."""
    for name in _NOT_SUPPORTED_BY_ALL:
        if getattr(options, name) and name not in source.supported_options:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} does not apply to a source of the kind {source.kind!r} ({place}); remove it")


def fingerprint(images: Iterable[SourceImage], classes: list[str], versions: bool) -> str:
    """SHA-256 of the images' keys, labels, splits, sizes and columns (and of their versions)."""
    digest = hashlib.sha256(repr(classes).encode())
    for image in images:
        version = image.version if versions else 0
        columns = image.columns or ""
        text = f"{image.key}\0{image.label}\0{image.split}\0{image.size_bytes}\0{version}\0{columns}\n"
        digest.update(text.encode())
    return digest.hexdigest()


def read_classes(place: Place) -> tuple[str, ...]:
    """The names of classes in a text file, one on each line; their numbers are the labels 0, 1, ...

    Raises UsageError if there is no such file, no name in it, or a name twice.
    """
    if place.info().type != fs.FileType.File:
        raise UsageError(f"--classes {place}: no such file; give a text file with the name of a class on each line")
    try:
        names = [line.strip() for line in place.read_bytes().decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UsageError(f"--classes {place} is not UTF-8 ({error.reason} at byte {error.start})") from None
    if not names:
        raise UsageError(f"--classes {place} has no name in it; give the name of a class on each line")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"--classes {place} has {twice[0]!r} more than once; leave one of them")
    return tuple(names)


def class_name(label: str, classes: Sequence[str] | None) -> str:
    """The class that ``label`` names: itself, or one of ``classes`` if it is the number of that."""
    if classes is None or label in classes or not re.fullmatch(r"[0-9]{1,9}", label) or int(label) >= len(classes):
        return label
    return classes[int(label)]


def number_labels(labels: Iterable[str], options: SourceOptions, place: Place) -> tuple[list[str], dict[str, int]]:
    """All classes, as of `all_classes`, and the number of the class of each label."""
    names = {label: class_name(label, options.classes) for label in labels}
    classes = all_classes(names.values(), options, place)
    numbers = {name: number for number, name in enumerate(classes)}
    return classes, {label: numbers[name] for label, name in names.items()}


def all_classes(names: Iterable[str], options: SourceOptions, place: Place) -> list[str]:
    """All classes: the known ones, then the new ones of ``names``, numbers by value and before words.

    Raises UsageError for a name outside the classes that the user gave, and for names that look the same.
    """
    found = set(names)
    _refuse_lookalikes(found.union(options.known), place)
    if options.classes is not None:
        if unknown := sorted(found - set(options.classes)):
            raise UsageError(
                f"{place} has the label {unknown[0]!r}, which is not one of the {len(options.classes)} --classes;"
                " add it there, or correct the label"
            )
        new = [name for name in options.classes if name not in options.known]
    else:
        new = sorted(found - set(options.known), key=_by_number)
    return [*options.known, *new]


def _refuse_lookalikes(names: Iterable[str], place: Place) -> None:
    """Raise UsageError for names that differ only by blanks at their ends or by Unicode normalisation (UAX #15)."""
    seen: dict[str, str] = {}
    for name in sorted(names):
        if (other := seen.setdefault(normalize("NFC", name).strip(), name)) != name:
            raise UsageError(
                f"{place} has the classes {other!a} and {name!a}, which differ only by blanks or by their"
                " Unicode form. Give both one name"
            )


def words_of(path: str) -> list[str]:
    """The runs of letters of a path, in lower case."""
    return re.findall("[a-z]+", path.lower())


def split_of(path: str) -> str | None:
    """The split that a path below the source names: its one word that names a split, as in ``train-00000.parquet``."""
    splits = {SPLITS_BY_WORD[word] for word in words_of(path) if word in SPLITS_BY_WORD}
    return splits.pop() if len(splits) == 1 else None


def refuse_twice(keys: Sequence[str], where: Callable[[int], str]) -> None:
    """Raise UsageError if a key comes twice; ``where`` gives the place of the key of a number, for the message."""
    if pc.count_distinct(pa.array(keys, pa.string())).as_py() == len(keys):
        return
    seen: dict[str, int] = {}
    for number, key in enumerate(keys):
        if (first := seen.setdefault(key, number)) != number:
            raise UsageError(f"the key {key} comes twice: in {where(first)} and in {where(number)}; leave one of them")


def _by_number(name: str) -> tuple[bool, int, str]:
    return (False, int(name), name) if re.fullmatch(r"[0-9]{1,18}", name) else (True, 0, name)

"""What a source of raw images is: a list of its images, their classes, and their bytes when asked.

Every source knows its images in a fixed order and by sizes before the bytes of one are read, so packs can be laid out.
Classes that are known already keep their labels, even where no image is left of them; new ones come after them.
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

# --classes says something to all
_DECIDING = ("split_folders", "image_column", "label_column", "split_column", "key_column")
_HEEDED_BY_SOME = (*_DECIDING, "follow_links")

Columns = tuple[tuple[str, str], ...]

MAX_WHOLE_BYTES = 16 << 20  # of an image file that is held in memory as it is read
Content = bytes | Iterator[bytes]  # of an image file: whole, or piece by piece, which can be read once


@dataclass(frozen=True, slots=True)
class SourceImage:
    """One image of a source, not read yet. ``version`` changes when its file is written again (its time of change).

    ``columns`` are what is told of it beside label and split, (name, value) by name; None where nothing is.
    ``position`` is where the source finds it: the number of one of its files, and an offset or a row in that.
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
    """How a source is to be read: what a user may say of it.

    ``known`` are the classes that keep their labels; ``classes`` (where given) are all that there may be. The columns
    are those of a list or a Parquet file, None where the source's own names tell. ``follow_links`` allows links that
    lead out of the source.
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
        """What of it decides the packs, for markers: nothing that is only known when the source is read again.

        Nor what only allows something: the list of images tells what came of it.
        """
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
    """What `etl.sources.open_source` gives. ``images`` are in the order in which they are read fastest."""

    kind: str
    supported_options: ClassVar[tuple[str, ...]]  # what of a `SourceOptions` says something to it, beside classes
    classes: list[str]
    images: list[SourceImage]
    skipped: int
    is_sequential: bool  # whether an image is reached only through those before it in its file

    @property
    def pixels(self) -> dict[str, int] | None:
        """Height, width and channels that all images share, where the source states them."""

    def large_files(self) -> list[LargeFile]:
        """The files that hold the images, by the numbers in their positions.

        Raises UsageError where images cannot be taken from where they lie.
        """
        ...

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        """The bytes of these image files, in their order; fastest where that is the order of ``self.images``.

        One of more than `MAX_WHOLE_BYTES` may come in pieces, to be taken before the next image is asked for.
        May be called in several threads at once. Raises DataError where a file changed since it was listed.
        """
        ...


def reject_unsupported_options(options: SourceOptions, source: type[Source], place: Place) -> None:
    """Raise UsageError where the user gave an option that says nothing to this kind of source."""
    for name in _HEEDED_BY_SOME:
        if getattr(options, name) and name not in source.supported_options:
            raise UsageError(
                f"--{name.replace('_', '-')} says nothing to a source of the kind {source.kind!r}, as {place} is; leave"
                " it out"
            )


def fingerprint(images: Iterable[SourceImage], classes: list[str], versions: bool) -> str:
    """SHA-256 of what the images are called, how labelled, how large, and of their columns (and their versions)."""
    digest = hashlib.sha256(repr(classes).encode())
    for image in images:
        version = image.version if versions else 0
        columns = image.columns or ""
        told = f"{image.key}\0{image.label}\0{image.split}\0{image.size_bytes}\0{version}\0{columns}\n"
        digest.update(told.encode())
    return digest.hexdigest()


def read_classes(place: Place) -> tuple[str, ...]:
    """The names of classes in a text file, one on each line; their numbers are the labels 0, 1, ...

    Raises UsageError where there is no such file, no name in it, or one twice.
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
    """The class that ``label`` names: itself, or where it is the number of one of ``classes``, that one."""
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
    """All classes: those that are known, then the new ones of ``names``, numbers by value and before words.

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
    """Raise UsageError where a key comes twice; ``where`` tells people where the one of a number was found."""
    if pc.count_distinct(pa.array(keys, pa.string())).as_py() == len(keys):
        return
    seen: dict[str, int] = {}
    for number, key in enumerate(keys):
        if (first := seen.setdefault(key, number)) != number:
            raise UsageError(f"the key {key} comes twice: in {where(first)} and in {where(number)}; leave one of them")


def _by_number(name: str) -> tuple[bool, int, str]:
    return (False, int(name), name) if re.fullmatch(r"[0-9]{1,18}", name) else (True, 0, name)

"""A list of images, each a file of its own wherever it lies: CSV with a header line, or JSON Lines."""

import errno
import posixpath
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from pyarrow import fs

from etl.errors import UsageError
from etl.progress import Progress, log
from etl.sources.base import (
    Columns,
    Content,
    LargeFile,
    NotInPlaceError,
    SourceImage,
    SourceOptions,
    number_labels,
    refuse_twice,
)
from etl.sources.csv_jsonl import read_rows
from etl.sources.fields import (
    checked_key,
    checked_label,
    checked_split,
    find_columns,
    known_columns,
    one_line,
    scalar_text,
)
from etl.sources.folder import Links, read_file
from etl.storage.place import Place, open_place

_PATH_COLUMNS = ("path", "uri", "url", "file", "file_name", "filename", "image")
_SCHEME = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9+.-]*)://")
_OPENED = ("file", "hdfs")
_THREADS, _PATHS_AT_ONCE = 4, 500
_NO_FILE_BY_THAT_NAME = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An image of a row; ``line`` is that of the list."""

    line: int
    key: str
    place: Place
    label: str
    split: str | None
    columns: Columns | None


class ListSource:
    """A list with a row for each image: the path or URI of its file, its label, perhaps its split, and others.

    A path is absolute, or relative to the list's folder; a URI is one that `etl.storage.place.open_place` takes. A path
    in that folder may not lead out of it by a link, unless ``follow_links`` is given. An image's key is its path as the
    list has it, or the value of the column of keys, if one is named. Raises UsageError for a wrong column, cell or
    file, DataError if the list is not of its format; both name the line.
    """

    kind = "list"
    supported_options: ClassVar[tuple[str, ...]] = (
        "image_column",
        "label_column",
        "split_column",
        "key_column",
        "follow_links",
    )
    is_sequential = False
    pixels = None
    skipped = 0

    def __init__(self, place: Place, options: SourceOptions) -> None:
        entries = list(_entries(place, options))
        refuse_twice([entry.key for entry in entries], lambda entry: f"line {entries[entry].line} of {place}")
        links = Links(place.parent, options.follow_links)
        for entry in entries:
            links.check_listed(entry.place, f"line {entry.line} of {place}")
        infos = _stat_files(entries, place)
        self.classes, labels = number_labels({entry.label for entry in entries}, options, place)
        self._places = [entry.place for entry in entries]
        self.images = [
            SourceImage(
                entry.key, labels[entry.label], entry.split, info.size, info.mtime_ns, entry.columns, (number, 0)
            )
            for number, (entry, info) in enumerate(zip(entries, infos, strict=True))
        ]

    def large_files(self) -> list[LargeFile]:
        raise NotInPlaceError("the images are files of their own")

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        for image in images:
            yield read_file(self._places[image.position[0]], image)


@dataclass(frozen=True)
class _Columns:
    """The names of the columns."""

    path: str
    label: str
    split: str | None
    key: str | None


def _entries(place: Place, options: SourceOptions) -> Iterator[_Entry]:
    """Check the rows; columns of JSON that are not scalars are left out, and logged."""
    rows = read_rows(place)
    first = next(rows, None)
    if first is None:
        raise UsageError(f"no images in {place}; expected a line for each, with its path and its label")
    columns = _choose_columns(list(first[1]), options, place)
    left_out: set[str] = set()
    for line, row in chain([first], rows):
        where = f"line {line} of {place}"
        key, file = _locate(row.get(columns.path), place.parent, where)
        if columns.key:
            key = checked_key(scalar_text(row.get(columns.key)) or "", where)
        others = sorted(row.keys() - {columns.path, columns.label, columns.split, columns.key})
        left_out.update(name for name in others if not _is_scalar(row[name]))
        yield _Entry(
            line,
            key,
            file,
            _label(row.get(columns.label), where),
            checked_split(scalar_text(row.get(columns.split)) if columns.split else None, where),
            known_columns(others, [scalar_text(row[name]) for name in others]),
        )
    if left_out:
        log(
            "ingest", f"columns that are neither text nor numbers are left out: {one_line(', '.join(sorted(left_out)))}"
        )


def _choose_columns(names: Sequence[str], options: SourceOptions, place: Place) -> _Columns:
    """Raises UsageError if a column is missing, or several may be that of the paths."""
    asked = options.image_column
    found = [name for name in names if name == asked or (asked is None and name in _PATH_COLUMNS)]
    shown = one_line(", ".join(names))
    if not found:
        what = f"column {asked} (--image-column)" if asked else f"column of paths, such as {_PATH_COLUMNS[0]}"
        raise UsageError(f"{place} has no {what}; its columns are {shown}: name that of the paths by --image-column")
    if len(found) > 1:
        raise UsageError(f"{place} has several columns of paths, {', '.join(found)}: choose one by --image-column")
    return _Columns(found[0], *find_columns(names, options, str(place)))


def _locate(path: Any, folder: Place, where: str) -> tuple[str, Place]:
    """The key and the place of the file that a cell names; paths go from ``folder``."""
    if not isinstance(path, str) or not path:
        raise UsageError(f"{where} has no path to an image; give it one, or leave the line out")
    if scheme := _SCHEME.match(path):
        if scheme["name"].lower() not in _OPENED:
            raise UsageError(
                f"{where}: {one_line(path)} cannot be opened; download it first, and list where it lies then: a path, a"
                " file:// or an hdfs:// URI"
            )
        try:
            place = open_place(path)
        except UsageError as error:
            raise UsageError(f"{where}: {one_line(error)}") from None
        return checked_key(place.path.lstrip("/"), where), place
    plain = posixpath.normpath(path)
    if plain.split("/")[0] == "..":
        raise UsageError(
            f"{where}: {one_line(path)} leads out of the list's folder; give the absolute path, or move the list"
        )
    key = checked_key(plain.lstrip("/"), where)
    return key, Place(folder.filesystem, f"/{key}") if plain.startswith("/") else folder / key


def _label(value: Any, where: str) -> str:
    if value is not None and not isinstance(value, str | int):
        raise UsageError(f"{where} has the label {one_line(value)}; labels are text, integers or booleans, correct it")
    return checked_label(scalar_text(value) or "", where)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _stat_files(entries: Sequence[_Entry], place: Place) -> list[fs.FileInfo]:
    """The size and time of change of each file. Raises UsageError if there is none."""
    shares = [entries[start : start + _PATHS_AT_ONCE] for start in range(0, len(entries), _PATHS_AT_ONCE)]
    infos: list[fs.FileInfo] = []
    with (
        Progress("ingest", len(entries), "files looked up", begins=False) as progress,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="stat") as pool,
    ):
        for share in pool.map(lambda share: [_stat(entry.place) for entry in share], shares):
            infos += share
            progress.update(len(infos))
    for entry, info in zip(entries, infos, strict=True):
        if info.type != fs.FileType.File:
            what = "no such file" if info.type == fs.FileType.NotFound else "it is no file"
            where = f"line {entry.line} of {place}: {one_line(entry.place)}"
            raise UsageError(f"{where}: {what}; correct the path, or leave the line out")
    return infos


def _stat(place: Place) -> fs.FileInfo:
    """The file's info; a name that no file can have is not found."""
    try:
        return place.info()
    except OSError as error:
        if error.errno not in _NO_FILE_BY_THAT_NAME:
            raise
        return fs.FileInfo(place.path, fs.FileType.NotFound)

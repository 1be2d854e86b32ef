"""A list of images, each a file of its own wherever it lies: CSV (RFC 4180) with a header line, or JSON Lines.

Both are UTF-8, with or without a byte order mark. Lines are counted from 1, as editors do.
"""

import csv
import io
import posixpath
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from pyarrow import fs

from etl.errors import DataError, UsageError
from etl.progress import Progress
from etl.sources.base import Columns, Content, Source, SourceImage, SourceOptions, reject_duplicates
from etl.sources.fields import (
    checked_key,
    checked_label,
    checked_split,
    find_columns,
    known_columns,
    log_left_out,
    number_labels,
    one_line,
    parse_object,
    scalar_text,
)
from etl.sources.folder import read_file, require_inside
from etl.storage.place import READ_BUFFER_BYTES, Place, open_place

_PATH_COLUMNS = ("path", "uri", "url", "file", "file_name", "filename", "image")
_SCHEME = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9+.-]*):/")
_OPENED = ("file", "hdfs")
_THREADS, _PATHS_AT_ONCE = 4, 500
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_Row = tuple[int, dict[str, Any]]  # the line that a row begins in, and its cells by column


@dataclass(frozen=True, slots=True)
class _Entry:
    """An image of a row; ``line`` is that of the list."""

    line: int
    key: str
    place: Place
    label: str
    split: str | None
    columns: Columns | None


class ListSource(Source):
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

    def __init__(self, place: Place, options: SourceOptions) -> None:
        entries = list(_entries(place, options))
        reject_duplicates([entry.key for entry in entries], lambda entry: f"line {entries[entry].line} of {place}")
        folder, real_folder = place.parent, place.parent.real_path
        for entry in () if options.follow_links else entries:
            file = entry.place
            if file.filesystem == folder.filesystem and file.path.startswith(f"{folder.path.rstrip('/')}/"):
                require_inside(file, folder, real_folder, f"line {entry.line} of {place}: ")
        infos = _stat_files(entries, place)
        self.classes, labels = number_labels({entry.label for entry in entries}, options, place)
        self._places = [entry.place for entry in entries]
        self.images = [
            SourceImage(
                entry.key, labels[entry.label], entry.split, info.size, info.mtime_ns, entry.columns, (number, 0)
            )
            for number, (entry, info) in enumerate(zip(entries, infos, strict=True))
        ]

    def read_all(self, images: Sequence[SourceImage]) -> Iterator[Content]:
        for image in images:
            yield read_file(self._places[image.position[0]], image)


def _entries(place: Place, options: SourceOptions) -> Iterator[_Entry]:
    """Check the rows; columns of JSON that are not scalars are left out, and logged."""
    is_csv = place.name.lower().endswith(".csv")
    rows = csv_rows(place) if is_csv else _json_rows(place)
    first = next(rows, None)
    if first is None:
        raise UsageError(f"no images in {place}; expected a line for each, with its path and its label")
    path_column = _path_column(list(first[1]), options, place)
    all_rows = [first] if is_csv else _json_rows(place)  # an object may lack a field that others have
    names = list(dict.fromkeys(name for _, row in all_rows for name in row))
    label_column, split_column, key_column = find_columns(names, options, str(place))
    left_out: set[str] = set()
    for line, row in chain([first], rows):
        where = f"line {line} of {place}"
        key, file = _locate(row.get(path_column), place.parent, where)
        if key_column:
            key = checked_key(scalar_text(row.get(key_column)) or "", where)
        others = sorted(row.keys() - {path_column, label_column, split_column, key_column})
        texts = [scalar_text(row[name]) for name in others]
        left_out.update(
            name for name, text in zip(others, texts, strict=True) if text is None and row[name] is not None
        )
        yield _Entry(
            line,
            key,
            file,
            _label(row.get(label_column), where),
            checked_split(scalar_text(row.get(split_column)) if split_column else None, where),
            known_columns(others, texts),
        )
    log_left_out(left_out)


def csv_rows(place: Place) -> Iterator[_Row]:
    """Yield the rows of a CSV file with a header, each with its line: text or None by column, the same columns in all.

    Raises DataError, which names the line, for a line that is not of the format.
    """
    rows = csv.reader(_text_lines(place), strict=True)
    columns: list[str] = []
    number = 1
    try:
        for cells in rows:
            if cells and not columns:
                columns = cells
                if "" in columns or len(set(columns)) < len(columns):
                    raise ValueError(f"the header needs a name of its own for each column, not {', '.join(columns)}")
            elif cells and len(cells) != len(columns):
                raise ValueError(f"it has {len(cells)} cells, the header {len(columns)}")
            elif cells:
                yield number, {name: cell or None for name, cell in zip(columns, cells, strict=True)}
            number = rows.line_num + 1
    except csv.Error as error:
        raise _damaged_line(place, number, f"{error}: is a quote missing or one too many?") from None
    except ValueError as error:
        raise _damaged_line(place, number, error) from None


def _lines(place: Place) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers, each with its end, without a byte order mark before the first."""
    with place.filesystem.explain_errors(place.path), place.open_input() as stream:
        for number, line in enumerate(io.BufferedReader(stream, READ_BUFFER_BYTES), 1):
            yield number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line


def _text_lines(place: Place) -> Iterator[str]:
    for number, line in _lines(place):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise _damaged_line(place, number, f"it is not UTF-8 ({error.reason})") from None


def _json_rows(place: Place) -> Iterator[_Row]:
    for number, line in _lines(place):
        if line.strip():
            try:
                row = parse_object(line)
            except ValueError as error:
                raise _damaged_line(place, number, error) from None
            yield number, row


def _damaged_line(place: Place, number: int, what: object) -> DataError:
    return DataError(f"line {number} of {place} cannot be read: {one_line(what)}; correct it")


def _path_column(names: Sequence[str], options: SourceOptions, place: Place) -> str:
    """Raises UsageError if it is missing, or several columns may be it."""
    asked = options.image_column
    found = [name for name in names if name == asked or (asked is None and name in _PATH_COLUMNS)]
    shown = one_line(", ".join(names))
    if not found:
        what = f"column {asked} (--image-column)" if asked else f"column of paths, such as {_PATH_COLUMNS[0]}"
        raise UsageError(f"{place} has no {what}; its columns are {shown}: name that of the paths by --image-column")
    if len(found) > 1:
        raise UsageError(f"{place} has several columns of paths, {', '.join(found)}: choose one by --image-column")
    return found[0]


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


def _stat_files(entries: Sequence[_Entry], place: Place) -> list[fs.FileInfo]:
    """The size and time of change of each file. Raises UsageError if there is none."""
    shares = [entries[start : start + _PATHS_AT_ONCE] for start in range(0, len(entries), _PATHS_AT_ONCE)]
    infos: list[fs.FileInfo] = []
    with (
        Progress("ingest", len(entries), "files looked up", begins=False) as progress,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="stat") as pool,
    ):
        for share in pool.map(lambda share: [entry.place.info() for entry in share], shares):
            infos += share
            progress.update(len(infos))
    for entry, info in zip(entries, infos, strict=True):
        if info.type != fs.FileType.File:
            what = "no such file" if info.type == fs.FileType.NotFound else "it is not a file"
            where = f"line {entry.line} of {place}: {one_line(entry.place)}"
            raise UsageError(f"{where}: {what}; correct the path, or leave the line out")
    return infos

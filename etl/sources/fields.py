"""What names and recorded values mean to every source: hidden files, kinds of files, which paths can be keys; labels,
classes, splits and further columns, and which column is which.

``where`` is the place of a value that a message names: ``row 3 of FILE``.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any
from unicodedata import normalize

from pyarrow import fs

from etl.errors import UsageError, printable
from etl.progress import log
from etl.sources.base import Columns, SourceOptions
from etl.storage.place import Place

LABEL, SPLIT = "label", "split"  # what is read if the user names no other column or field

MAX_LABEL_BYTES = 1000

_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # controls, line ends, half characters

INNER_ARCHIVES = re.compile(r"(?i)\.tar$")  # a member of an archive with images of one class
ARCHIVE_NAMES = re.compile(r"(?i)\.(tar|tar\.gz|tgz|tar\.zst|tzst)$")
PARQUET_NAMES = re.compile(r"(?i)\.(parquet|pq)$")
UNREAD_ARCHIVES = re.compile(r"(?i)\.(zip|rar|7z|tar\.bz2|tbz2?|tar\.xz|txz|tar\.lz4)$")
LIST_NAMES = re.compile(r"(?i)\.(csv|jsonl|ndjson)$")
DESCRIPTION_NAMES = re.compile(r"(?i)^_|\.(json|md|txt|yaml|yml|idx|crc)$")  # of files beside data

# Folders and files that storage devices and file managers add among those of people.
_ADDED_BY_TOOLS = frozenset(
    {"@eadir", "#recycle", "#snapshot", "@recycle", "$recycle.bin", "system volume information", "lost+found"}
    | {"@tmp", "@recently-snapshot", "network trash folder", "temporary items"}
    | {"_success", "__macosx", "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "picasa.ini", "icon\r"}
)
_RECOVERED = re.compile(r"found\.\d{3}")  # by chkdsk
_DELETED = re.compile(r"R(?<![^/]R)(?:ECYCLE|ecycle)[RDrd]/(?:S-1-|D[A-Za-z]\d+\.|INFO2?$)")  # in Windows bins
_ADDED_ENDINGS = (":encryptable", ":zone.identifier", "._copying_")  # NTFS streams that were copied; hdfs dfs -put

SPLITS_BY_WORD = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}

MAX_NAME_BYTES = 4096  # PATH_MAX of Linux
MAX_SHOWN = 200  # characters of a name or a value in a message
_NO_NAMES = frozenset(("", ".", ".."))


def one_line(text: object, most: int = 300) -> str:
    """The first line of a text, without control characters, and not longer than ``most`` characters."""
    line = _NOT_SHOWN.sub("", (str(text).strip().splitlines() or [""])[0])
    return line if len(line) <= most else f"{line[:most]}…"


def checked_label(label: str, where: str) -> str:
    """``label`` as the name of a class. Raises UsageError if it cannot be one."""
    if fault := "is empty" if not label.strip() else fault_of_text(label, MAX_LABEL_BYTES):
        raise UsageError(f"{where} has a label that {fault}: {label[:MAX_SHOWN]!r}; correct it, or leave it out")
    return label


def checked_split(value: str | None, where: str) -> str | None:
    """The split that a word names, in capitals or not; None if there is none. Raises UsageError for another word."""
    if not value:
        return None
    word = value.strip().lower()
    if word not in SPLITS_BY_WORD:
        raise UsageError(
            f"{where} has the split {value[:MAX_SHOWN]!r}; a split is one of {', '.join(SPLITS_BY_WORD)}: correct it,"
            " or name another column or field by --split-column"
        )
    return SPLITS_BY_WORD[word]


def read_lines(place: Place, option: str, what: str) -> list[str]:
    """The lines of the text file that a user names by ``option``, without a byte order mark.

    Raises UsageError if it is not a file in UTF-8; ``what`` is what a line should have.
    """
    kind, remedy = place.info().type, f"give a text file with {what} on each line"
    if kind != fs.FileType.File:
        wrong = "no such file" if kind == fs.FileType.NotFound else "is not a file"
        raise UsageError(f"{option} {place}: {wrong}; {remedy}")
    try:
        return [line.rstrip("\r") for line in place.read_bytes().decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {place} is not UTF-8 ({error.reason} at byte {error.start}); {remedy}") from None


def read_classes(place: Place) -> tuple[str, ...]:
    """The names of classes in a text file, one on each line; their numbers are the labels 0, 1, ...

    Raises UsageError if there is no such file, no name in it, or a name twice.
    """
    names = [name for line in read_lines(place, "--classes", "the name of a class") if (name := line.strip())]
    if not names:
        raise UsageError(f"--classes {place} has no name in it; give the name of a class on each line")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"--classes {place} has {twice[0]!r} more than once; leave one of them")
    return tuple(names)


def number_labels(labels: Iterable[str], options: SourceOptions, place: Place) -> tuple[list[str], dict[str, int]]:
    """All classes of a source, and the number of the class of each label.

    A label is the name of its class, or the number of one of the user's classes unless some of their names are other
    numbers. Known classes come first, then the user's, else the new ones in order: numbers by value, before words.

    Raises UsageError for a label outside the user's classes, and for names that look the same.
    """
    lines = options.classes or ()
    are_numbers = any(re.fullmatch(r"[0-9]+", name) and name != str(line) for line, name in enumerate(lines))
    names = {label: label if are_numbers else _class_name(label, lines) for label in labels}
    found = set(names.values())
    _reject_lookalikes(found.union(options.known), place)
    if options.classes is None:
        new = sorted(found, key=_number_first)
    elif unknown := sorted(found - set(options.classes)):
        raise UsageError(
            f"{place} has the label {unknown[0]!r}, which is not one of the {len(options.classes)} --classes;"
            " add it there, or correct the label"
        )
    else:
        new = list(options.classes)
    classes = list(dict.fromkeys([*options.known, *new]))
    numbers = {name: number for number, name in enumerate(classes)}
    return classes, {label: numbers[name] for label, name in names.items()}


def _class_name(label: str, classes: Sequence[str]) -> str:
    """The class of a label: of that name, or one of ``classes`` if the label is the number of that."""
    if label in classes or not re.fullmatch(r"[0-9]{1,9}", label) or int(label) >= len(classes):
        return label
    return classes[int(label)]


def _number_first(name: str) -> tuple[bool, int, str]:
    return (False, int(name), name) if re.fullmatch(r"[0-9]{1,18}", name) else (True, 0, name)


def _reject_lookalikes(names: Iterable[str], place: Place) -> None:
    """Raise UsageError for names that differ only by blanks at their ends or by Unicode normalisation (UAX #15)."""
    seen: dict[str, str] = {}
    for name in sorted(names):
        if (other := seen.setdefault(normalize("NFC", name).strip(), name)) != name:
            raise UsageError(
                f"{place} has the classes {other!a} and {name!a}, which differ only by blanks or by their"
                " Unicode form. Give both one name"
            )


def scalar_text(value: Any) -> str | None:
    """A scalar of JSON as text, numbers in decimal, ``true`` and ``false``; None for null, lists and objects."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object in UTF-8; NaN and infinities, as 1e999, become None. Raises ValueError with the reason."""
    try:
        found = json.loads(text.decode("utf-8-sig"), parse_constant=lambda _: None, parse_float=_finite)
        if b"\\u" in text:
            json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # fails for half a surrogate pair
    except UnicodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from None  # type: ignore[attr-defined]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object, {...}")
    return found


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def find_columns(
    names: Sequence[str], options: SourceOptions, where: str, other_labels: Iterable[str] = ()
) -> tuple[str, str | None, str | None]:
    """The columns of labels, splits and keys; None for splits or keys if there is none.

    Raises UsageError for a column that the user names and that is missing, and if there is none of labels.
    """
    shown = one_line(", ".join(names))
    found: dict[str, str | None] = {}
    for what, defaults in (("label", (LABEL, *other_labels)), ("split", (SPLIT,)), ("key", ())):
        asked = getattr(options, f"{what}_column")
        if asked is not None and asked not in names:
            raise UsageError(f"--{what}-column {asked}: no such column in {where}; its columns are {shown}")
        found[what] = next((name for name in defaults if name in names), None) if asked is None else asked
    if (label := found["label"]) is None:
        raise UsageError(
            f"{where} has no column {LABEL}; its columns are {shown}: name that of the labels by --label-column"
        )
    return label, found["split"], found["key"]


def log_left_out(names: Collection[str]) -> None:
    """Log the columns that no image keeps, if there are any."""
    if names:
        shown = one_line(", ".join(sorted(names)))
        log("ingest", f"columns that are neither text nor numbers are left out: {shown}")


def known_columns(names: Sequence[str], cells: Sequence[str | None]) -> Columns | None:
    """The columns of an image that have a value, as (name, value); None if none has.

    ``names`` are sorted, as `SourceImage` has them.
    """
    return tuple((name, cell) for name, cell in zip(names, cells, strict=True) if cell is not None) or None


def is_large_file(name: str) -> bool:
    """True if a file of this name contains many images."""
    return bool(ARCHIVE_NAMES.search(name) or PARQUET_NAMES.search(name))


def is_visible(path: str) -> bool:
    """True if no part of ``path`` is hidden (begins with a dot) or has a name that tools give to what they add."""
    folder, _, name = path.rpartition("/")
    return not (_is_hidden(name) or _has_hidden_part(folder) or _DELETED.search(path))


@lru_cache(maxsize=1024)  # many files, one after the other, have the same folder
def _has_hidden_part(folder: str) -> bool:
    return any(map(_is_hidden, folder.split("/")))


def _is_hidden(name: str) -> bool:
    lower = name.lower()
    return (
        name.startswith(".")
        or lower in _ADDED_BY_TOOLS
        or lower.endswith(_ADDED_ENDINGS)
        or (lower.startswith("found") and _RECOVERED.fullmatch(lower) is not None)
    )


def words_of(path: str) -> list[str]:
    """The runs of letters of a path, in lower case."""
    return re.findall(r"[^\W\d_]+", normalize("NFC", path.lower()))  # macOS writes accents apart


def split_of(path: str) -> str | None:
    """The split that a path below the source names: the one word for a split in the name of the file, as in
    ``train-00000.parquet``, else in the whole path.
    """
    for text in (path.rpartition("/")[2], path):
        splits = {SPLITS_BY_WORD[word] for word in words_of(text) if word in SPLITS_BY_WORD}
        if len(splits) == 1:
            return splits.pop()
    return None


def checked_key(path: str, where: str) -> str:
    """``path`` as a key, or a part of one; ``where`` is the place that a message names.

    Bytes that are not UTF-8 are surrogates in it, from the error handler "surrogateescape". Raises UsageError for a
    path that is absolute, leads elsewhere, is too long, or is not a line of UTF-8.
    """
    fault = fault_of_text(path, MAX_NAME_BYTES) or ("is absolute" if path.startswith("/") else None)
    if fault is None and not _NO_NAMES.isdisjoint(parts := path.split("/")):
        fault = f"has the part {next(part for part in parts if part in _NO_NAMES)!r}"
    if fault:
        raise UsageError(
            f"{printable(where, '')}: {path[:MAX_SHOWN]!r} cannot be a key, because it {fault}; rename it: keys are"
            " relative paths in UTF-8, without control characters"
        )
    return path


def fault_of_text(text: str, max_bytes: int) -> str | None:
    """Why a text cannot be a name, in words after "it"; None if it can."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if size_bytes > max_bytes:
        return f"has {size_bytes} bytes, more than {max_bytes}"
    # the first test is five times as fast, and false for some text without control characters, too
    return "has control characters" if not text.isprintable() and _NOT_SHOWN.search(text) else None

"""Check the columns and fields of a source: keys, labels and splits, and which column is which.

``where`` names the place of a value in messages: ``row 3 of FILE``.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from etl.errors import UsageError, printable
from etl.sources.base import SPLITS_BY_WORD, Columns, SourceOptions

LABEL, SPLIT = "label", "split"  # what is read if the user names no other column or field

MAX_IMAGE_BYTES = 1 << 30
MAX_NAME_BYTES = 4096  # PATH_MAX of Linux
MAX_LABEL_BYTES = 1000

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # and what ends a line


def fault_of_name(name: str) -> str | None:
    """Why a relative path cannot be a key, or a part of one, in words after "its name"; None if it can.

    Bytes that are not UTF-8 are surrogates in it, from the error handler "surrogateescape".
    """
    if fault := _fault_of_text(name, MAX_NAME_BYTES):
        return fault
    if name.startswith("/"):
        return "is absolute"
    parts = name.split("/")
    bad = next((part for part in parts if part in ("", ".", "..")), None)
    return None if bad is None else f"has the part {bad!r}"


def _fault_of_text(text: str, longest: int) -> str | None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if size > longest:
        return f"has {size} bytes, more than {longest}"
    return "holds control characters" if _CONTROL.search(text) else None


_MAX_SHOWN = 200
_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # controls, line ends, half characters


def one_line(text: object, most: int = 300) -> str:
    """The first line of a text, without control characters, and not longer than ``most`` characters."""
    line = _NOT_SHOWN.sub("", (str(text).strip().splitlines() or [""])[0])
    return line if len(line) <= most else f"{line[:most]}…"


def checked_key(path: str, where: str) -> str:
    """``path`` as a key, or a part of one. Raises UsageError if `fault_of_name` finds something."""
    if fault := fault_of_name(path):
        raise UsageError(
            f"{printable(where, '')}: {path[:_MAX_SHOWN]!r} cannot be a key, for it {fault}; rename it: keys are"
            " relative paths in UTF-8, without control characters"
        )
    return path


def checked_label(label: str, where: str) -> str:
    """``label`` as the name of a class. Raises UsageError if it cannot be one."""
    if fault := "is empty" if not label.strip() else _fault_of_text(label, MAX_LABEL_BYTES):
        raise UsageError(f"{where} has a label that {fault}: {label[:_MAX_SHOWN]!r}; correct it, or leave it out")
    return label


def checked_split(value: str | None, where: str) -> str | None:
    """The split that a word names, in capitals or not; None if there is none. Raises UsageError for another word."""
    if not value:
        return None
    word = value.strip().lower()
    if word not in SPLITS_BY_WORD:
        raise UsageError(
            f"{where} has the split {value[:_MAX_SHOWN]!r}; a split is one of {', '.join(SPLITS_BY_WORD)}: correct it,"
            " or name another column or field by --split-column"
        )
    return SPLITS_BY_WORD[word]


def scalar_text(value: Any) -> str | None:
    """A scalar of JSON as text, numbers in decimal, ``true`` and ``false``; None for null, lists and objects."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object in UTF-8; NaN and infinities become None. Raises ValueError with the reason."""
    try:
        found = json.loads(text.decode("utf-8-sig"), parse_constant=lambda _: None)
        if b"\\u" in text:
            json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # fails for half a surrogate pair
    except UnicodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from None  # type: ignore[attr-defined]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object, {...}")
    return found


def find_columns(
    names: Sequence[str], options: SourceOptions, where: str, other_labels: Iterable[str] = ()
) -> tuple[str, str | None, str | None]:
    """The columns of labels, splits and keys; None for splits or keys if there is none.

    Raises UsageError for a column that the user names and that is missing, and if there is none of labels.
    """
    label = find_column("--label-column", options.label_column, names, where, (LABEL, *other_labels))
    if label is None:
        raise UsageError(
            f"{where} has no column {LABEL}; its columns are {one_line(', '.join(names))}: name that of the labels by"
            " --label-column"
        )
    split = find_column("--split-column", options.split_column, names, where, (SPLIT,))
    return label, split, find_column("--key-column", options.key_column, names, where)


def find_column(
    option: str, asked: str | None, names: Sequence[str], where: str, defaults: Iterable[str] = ()
) -> str | None:
    """The column that the user names by this option, otherwise the first of ``defaults`` that is there, or None.

    Raises UsageError if the column that the user names is missing.
    """
    if asked is None:
        return next((name for name in defaults if name in names), None)
    if asked not in names:
        raise UsageError(f"{option} {asked}: no such column in {where}; its columns are {one_line(', '.join(names))}")
    return asked


def known_columns(names: Sequence[str], cells: Sequence[str | None]) -> Columns | None:
    """The columns of an image that have a value, as (name, value); None if none has.

    ``names`` are sorted, as `SourceImage` has them.
    """
    return tuple((name, cell) for name, cell in zip(names, cells, strict=True) if cell is not None) or None

"""What columns and fields of a source may say: keys, labels and splits, and which column is which.

``where`` says for people where a value was found: ``row 3 of FILE``.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from etl.errors import UsageError, printable
from etl.sources.base import SPLITS_BY_WORD, Columns, Reading

LONGEST_NAME_BYTES = 4096  # PATH_MAX of Linux
LONGEST_LABEL_BYTES = 1000

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # and what ends a line


def fault_of_name(name: str) -> str | None:
    """What forbids a relative path as a key, or a part of one, to be read after "its name"; None where nothing does.

    What is no text is told by its surrogates, as "surrogateescape" leaves them.
    """
    if fault := _fault_of_text(name, LONGEST_NAME_BYTES):
        return fault
    if name.startswith("/"):
        return "is absolute"
    parts = name.split("/")
    bad = next((part for part in parts if part in ("", ".", "..")), None)
    return None if bad is None else f"has the part {bad!r}"


def fault_of_label(label: str) -> str | None:
    """What forbids a text as the name of a class, to be read after "the label"; None where nothing does."""
    return "is empty" if not label.strip() else _fault_of_text(label, LONGEST_LABEL_BYTES)


def _fault_of_text(text: str, longest: int) -> str | None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if size > longest:
        return f"has {size} bytes, more than {longest}"
    return "holds control characters" if _CONTROL.search(text) else None


MOST_IMAGE_BYTES = 1 << 30

LABEL, SPLIT = "label", "split"  # what is read where the user names no other column or field

_MOST_SHOWN = 200
_NOT_SHOWN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # controls, line ends, half characters


def one_line(text: object, most: int = 300) -> str:
    """The first line of a text, without control characters, and not longer than ``most`` characters."""
    line = _NOT_SHOWN.sub("", (str(text).strip().splitlines() or [""])[0])
    return line if len(line) <= most else f"{line[:most]}…"


def checked_key(path: str, where: str) -> str:
    """``path`` as a key, or a part of one. Raises UsageError where `fault_of_name` finds something."""
    if fault := fault_of_name(path):
        raise UsageError(
            f"{printable(where, '')}: {path[:_MOST_SHOWN]!r} cannot be a key, for it {fault}; rename it: keys are"
            " relative paths in UTF-8, without control characters"
        )
    return path


def checked_label(label: str, where: str) -> str:
    """``label`` as the name of a class. Raises UsageError where `fault_of_label` finds something."""
    if fault := fault_of_label(label):
        raise UsageError(f"{where} has a label that {fault}: {label[:_MOST_SHOWN]!r}; correct it, or leave it out")
    return label


def checked_split(value: str | None, where: str) -> str | None:
    """The split that a word names, in capitals or not; None where there is none. Raises UsageError for another word."""
    if not value:
        return None
    word = value.strip().lower()
    if word not in SPLITS_BY_WORD:
        raise UsageError(
            f"{where} has the split {value[:_MOST_SHOWN]!r}; a split is one of {', '.join(SPLITS_BY_WORD)}: correct it,"
            " or name another column or field by --split-column"
        )
    return SPLITS_BY_WORD[word]


def scalar_text(value: Any) -> str | None:
    """A scalar of JSON as text, numbers in decimal, ``true`` and ``false``; None where it says nothing or is none."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def label_column(columns: Sequence[str], reading: Reading, where: str, others: Iterable[str] = ()) -> str:
    """The column of labels: the one asked for, else `LABEL`, else the first of ``others`` that is there.

    Raises UsageError where there is none.
    """
    asked = reading.label_column
    for name in [asked] if asked is not None else [LABEL, *others]:
        if name in columns:
            return name
    what = f"--label-column {asked}: no such column in {where}" if asked else f"{where} has no column {LABEL}"
    raise UsageError(
        f"{what}; its columns are {one_line(', '.join(columns))}: name that of the labels by --label-column"
    )


def split_column(columns: Sequence[str], reading: Reading, where: str) -> str | None:
    """The column of splits: the one asked for, else `SPLIT` where it is there, else None.

    Raises UsageError where the one asked for is not there.
    """
    asked = reading.split_column
    if asked is not None and asked not in columns:
        raise UsageError(
            f"--split-column {asked}: no such column in {where}; its columns are {one_line(', '.join(columns))}"
        )
    return asked or (SPLIT if SPLIT in columns else None)


def key_column(columns: Sequence[str], reading: Reading, where: str) -> str | None:
    """The column of keys, if one is asked for. Raises UsageError where it is not there."""
    asked = reading.key_column
    if asked is not None and asked not in columns:
        raise UsageError(
            f"--key-column {asked}: no such column in {where}; its columns are {one_line(', '.join(columns))}"
        )
    return asked


def told_columns(names: Sequence[str], cells: Sequence[str | None]) -> Columns | None:
    """The columns of an image that say something of it, as (name, value); None where none does.

    ``names`` are sorted, as `SourceImage` has them.
    """
    return tuple((name, cell) for name, cell in zip(names, cells, strict=True) if cell is not None) or None

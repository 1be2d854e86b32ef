"""What columns and fields of a source may say: keys, labels and splits, and which column is which.

``where`` says for people where a value was found: ``row 3 of FILE``.
"""

import re
from collections.abc import Iterable, Sequence

from etl.errors import UsageError
from etl.sources.base import SPLITS_BY_WORD, Columns, Reading

MOST_IMAGE_BYTES = 1 << 30

_LABEL, _SPLIT = "label", "split"
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # controls, line ends, half characters


def one_line(text: object, most: int = 300) -> str:
    """The first line of a text, without control characters, and not longer than ``most`` characters."""
    line = _NOT_IN_NAMES.sub("", (str(text).strip().splitlines() or [""])[0])
    return line if len(line) <= most else f"{line[:most]}…"


def checked_key(path: str, where: str) -> str:
    """``path`` as a key. Raises UsageError where a part is empty, ``.`` or ``..``, or has control characters."""
    if _NOT_IN_NAMES.search(path) or any(part in ("", ".", "..") for part in path.split("/")):
        raise UsageError(
            f"{where}: {path!r} cannot be a key, a path of plain names; rename the file, without control characters"
        )
    return path


def checked_label(label: str, where: str) -> str:
    """``label`` as the name of a class. Raises UsageError where it is empty or has control characters."""
    if not label.strip():
        raise UsageError(f"{where} has an empty label; give it one, or leave it out")
    if _NOT_IN_NAMES.search(label):
        raise UsageError(f"{where} has the label {label!r}; labels are text without control characters, correct it")
    return label


def checked_split(value: str | None, where: str) -> str | None:
    """The split that a value names; None where there is none. Raises UsageError for another word."""
    if not value:
        return None
    if value not in SPLITS_BY_WORD:
        raise UsageError(
            f"{where} has the split {value!r}; a split is one of {', '.join(SPLITS_BY_WORD)}: correct it, or name"
            " another column by --split-column"
        )
    return SPLITS_BY_WORD[value]


def label_column(columns: Sequence[str], reading: Reading, where: str, others: Iterable[str] = ()) -> str:
    """The column of labels: the one asked for, else ``label``, else the first of ``others`` that is there.

    Raises UsageError where there is none.
    """
    asked = reading.label_column
    for name in [asked] if asked is not None else [_LABEL, *others]:
        if name in columns:
            return name
    what = f"--label-column {asked}: no such column in {where}" if asked else f"{where} has no column {_LABEL}"
    raise UsageError(
        f"{what}; its columns are {one_line(', '.join(columns))}: name that of the labels by --label-column"
    )


def split_column(columns: Sequence[str], reading: Reading, where: str) -> str | None:
    """The column of splits: the one asked for, else ``split`` where it is there, else None.

    Raises UsageError where the one asked for is not there.
    """
    asked = reading.split_column
    if asked is not None and asked not in columns:
        raise UsageError(
            f"--split-column {asked}: no such column in {where}; its columns are {one_line(', '.join(columns))}"
        )
    return asked or (_SPLIT if _SPLIT in columns else None)


def told_columns(names: Sequence[str], cells: Sequence[str | None]) -> Columns | None:
    """The columns of an image that say something of it, as (name, value); None where none does."""
    return tuple((name, cell) for name, cell in zip(names, cells, strict=True) if cell is not None) or None

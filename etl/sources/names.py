"""What names mean to every source: hidden files, kinds of files, splits, and which paths can be keys. Pure."""

import re

from etl.errors import UsageError, printable

INNER_ARCHIVES = re.compile(r"(?i)\.tar$")  # a member of an archive with images of one class
ARCHIVE_NAMES = re.compile(r"(?i)\.(tar|tar\.gz|tgz|tar\.zst|tzst)$")
PARQUET_NAMES = re.compile(r"(?i)\.(parquet|pq)$")
LIST_NAMES = re.compile(r"(?i)\.(csv|jsonl|ndjson)$")
_DESCRIBING = re.compile(r"(?i)^_|\.(json|md|txt|yaml|yml|idx|crc)$")

# Folders and files that storage devices and file managers add among those of people.
_ADDED_BY_TOOLS = frozenset(
    {"@eadir", "#recycle", "#snapshot", "@recycle", "$recycle.bin", "system volume information", "lost+found"}
    | {"@tmp", "@recently-snapshot", "recycler", "recycled", "network trash folder", "temporary items"}
    | {"__macosx", "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "picasa.ini", "icon\r"}
)
_RECOVERED = re.compile(r"found\.\d{3}")  # by chkdsk
_NTFS_STREAMS = (":encryptable", ":zone.identifier")  # that were copied as files: Thumbs.db:encryptable

SPLITS_BY_WORD = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}

MAX_NAME_BYTES = 4096  # PATH_MAX of Linux
MAX_SHOWN = 200  # characters of a name or a value in a message
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # and what ends a line


def is_description(name: str) -> bool:
    """True if a file of this name describes the data that it lies beside."""
    return bool(_DESCRIBING.search(name))


def is_large_file(name: str) -> bool:
    """True if a file of this name contains many images."""
    return bool(ARCHIVE_NAMES.search(name) or PARQUET_NAMES.search(name))


def is_visible(path: str) -> bool:
    """True if no part of ``path`` is hidden (begins with a dot) or has a name that tools give to what they add."""
    return not any(map(_is_hidden, path.split("/")))


def _is_hidden(name: str) -> bool:
    lower = name.lower()
    return (
        name.startswith(".")
        or lower in _ADDED_BY_TOOLS
        or lower.endswith(_NTFS_STREAMS)
        or (lower.startswith("found") and _RECOVERED.fullmatch(lower) is not None)
    )


def words_of(path: str) -> list[str]:
    """The runs of letters of a path, in lower case."""
    return re.findall("[a-z]+", path.lower())


def split_of(path: str) -> str | None:
    """The split that a path below the source names: its one word that names a split, as in ``train-00000.parquet``."""
    splits = {SPLITS_BY_WORD[word] for word in words_of(path) if word in SPLITS_BY_WORD}
    return splits.pop() if len(splits) == 1 else None


def checked_key(path: str, where: str) -> str:
    """``path`` as a key, or a part of one; ``where`` is the place that a message names.

    Bytes that are not UTF-8 are surrogates in it, from the error handler "surrogateescape". Raises UsageError for a
    path that is absolute, leads elsewhere, is too long, or is not a line of UTF-8.
    """
    bad = next((part for part in path.split("/") if part in ("", ".", "..")), None)
    fault = fault_of_text(path, MAX_NAME_BYTES) or ("is absolute" if path.startswith("/") else None)
    if fault := fault or (None if bad is None else f"has the part {bad!r}"):
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
    return "has control characters" if _CONTROL.search(text) else None

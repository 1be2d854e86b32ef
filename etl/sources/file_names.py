"""What files are by their names: archives, Parquet files, lists, what describes them, and what is hidden. Pure."""

import re

INNER_ARCHIVES = re.compile(r"(?i)\.tar$")  # a member of an archive with images of one class
ARCHIVE_NAMES = re.compile(r"(?i)\.(tar|tar\.gz|tgz|tar\.zst|tzst)$")
PARQUET_NAMES = re.compile(r"(?i)\.(parquet|pq)$")
LIST_NAMES = re.compile(r"(?i)\.(csv|jsonl|ndjson)$")

_DESCRIBING = re.compile(r"(?i)^_|\.(json|md|txt|yaml|yml|idx|crc)$")


def describes(name: str) -> bool:
    """Whether a file of this name describes the data that it lies beside."""
    return bool(_DESCRIBING.search(name))


def is_large_file(name: str) -> bool:
    """Whether a file of this name holds many images."""
    return bool(ARCHIVE_NAMES.search(name) or PARQUET_NAMES.search(name))


# Folders and files that storage devices and file managers add among those of people.
_ADDED_BY_TOOLS = frozenset(
    {"@eadir", "#recycle", "#snapshot", "@recycle", "$recycle.bin", "system volume information", "lost+found"}
    | {"@tmp", "@recently-snapshot", "recycler", "recycled", "network trash folder", "temporary items"}
    | {"__macosx", "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "picasa.ini", "icon\r"}
)
_RECOVERED = re.compile(r"found\.\d{3}")  # by chkdsk
_NTFS_STREAMS = (":encryptable", ":zone.identifier")  # that were copied as files: Thumbs.db:encryptable


def is_visible(path: str) -> bool:
    """Whether no part of ``path`` is hidden (begins with a dot) or has a name that tools give to what they add."""
    return not any(map(_is_hidden, path.split("/")))


def _is_hidden(name: str) -> bool:
    lower = name.lower()
    return (
        name.startswith(".")
        or lower in _ADDED_BY_TOOLS
        or lower.endswith(_NTFS_STREAMS)
        or (lower.startswith("found") and _RECOVERED.fullmatch(lower) is not None)
    )

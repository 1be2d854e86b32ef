"""Lists of keys that a user gives in a text file (``--remove``)."""

import hashlib
from collections.abc import Iterable

from etl.errors import UsageError
from etl.storage.place import Place

BYTE_ORDER_MARK = "\ufeff"


def read_keys(place: Place, option: str = "--remove") -> list[str]:
    """The keys in a text file of one on each line, sorted, each once; a byte order mark is skipped.

    Raises UsageError if it is not such a file.
    """
    wrong = {"NotFound": "there is no such file", "Directory": "it is a folder"}.get(place.info().type.name, "")
    text = ""
    try:
        text = "" if wrong else place.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        wrong = "it is not text"
    if wrong:
        raise UsageError(f"{option} {place}: {wrong}; give a text file of keys, one on each line")
    return sorted({line.rstrip("\r") for line in text.split("\n") if line.rstrip("\r")})


def list_sha256(keys: Iterable[str]) -> str:
    """The SHA-256, in hexadecimal, of a sorted list of keys: as manifests record it."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()

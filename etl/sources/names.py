"""Names and labels from files of others: which are taken as they are, and what is wrong with the rest. Pure."""

import re

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

"""The names of classes that Hugging Face `datasets` keeps beside a column of numbers.

They stand in the metadata of a schema under ``huggingface``: JSON, {"info": {"features": {COLUMN: FEATURE}}}. A FEATURE
of classes is {"_type": "ClassLabel", "names": [...]}, or as dataset cards have it {"dtype": {"class_label": {"names":
{"0": ...}}}}; the number n is that of the n-th name.
"""

import json
from collections.abc import Mapping
from typing import Any

from etl.sources.fields import checked_label, one_line

_KEY = b"huggingface"


def class_names(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...] | None:
    """The names of the classes of this column, by number; None where the metadata of the schema have none.

    Raises ValueError where they are damaged, UsageError where a name cannot be one of ours.
    """
    if not metadata or _KEY not in metadata:
        return None
    found = _names(_feature(metadata[_KEY], column))
    if found is None:
        return None
    names = tuple(checked_label(name, f"the metadata of the column {column}") for name in found)
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise ValueError(f"its metadata have the class {twice!r} of the column {column} more than once")
    return names


def _feature(text: bytes, column: str) -> Any:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its metadata of {_KEY.decode()} are not JSON ({one_line(error)})") from None
    features = _inside(told, "info", "features")
    if isinstance(features, list):  # dataset cards have lists, of features with a name
        features = {each["name"]: each for each in features if isinstance(each, dict) and "name" in each}
    return _inside(features, column)


def _names(feature: Any) -> list[str] | None:
    """The names that a feature gives; None where it is no feature of classes."""
    nested = _inside(feature, "dtype", "class_label") or _inside(feature, "class_label")
    if _inside(feature, "_type") != "ClassLabel" and nested is None:
        return None
    names = _inside(nested or feature, "names")
    if isinstance(names, dict):
        names = [names.get(str(number)) for number in range(len(names))]
    if not names:
        return None  # a number of classes without names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("the names of classes in its metadata are no list of text")
    return names


def _inside(value: Any, *names: str) -> Any:
    """What lies at a path of names in nested objects of JSON; None where there is nothing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value

"""Markers, and generations: how a finished stage takes other input without being rebuilt.

The stage's marker names its files, which never change. A renewal adds files, and its marker replaces the one before,
which is kept byte for byte under ``generations/``, named by its fingerprint: what was made from it still finds it.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from etl.errors import DataError
from etl.stages.names import GENERATIONS_FOLDER
from etl.storage.place import Place

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Generation:
    """A marker, and its fingerprint: the SHA-256 of its bytes, in hexadecimal."""

    marker: dict[str, Any]
    fingerprint: str

    @classmethod
    def read(cls, place: Place) -> "Generation":
        """The marker in this file. Raises DataError if it cannot be parsed."""
        data = place.read_bytes()
        fingerprint = fingerprint_of(data)
        try:
            text = data.decode()
            del data  # markers may be large
            marker = json.loads(text, object_hook=_with_compact_counts)
            if not isinstance(marker, dict):
                raise ValueError("it is not an object")
            return cls(marker, fingerprint)
        except ValueError as error:
            raise DataError(f"{place} is not JSON ({error}); it was damaged or written by something else") from None


def _with_compact_counts(parsed: dict[str, Any]) -> dict[str, Any]:
    """Examples by label as arrays of 4 bytes each: as lists those of 10,000 parts x 1,000 classes would take 80 MB."""
    if isinstance(examples := parsed.get("examples"), dict):
        for split, by_label in examples.items():
            with suppress(TypeError, OverflowError):  # not counts: left as it is, for what checks it
                examples[split] = array("I", by_label) if isinstance(by_label, list) else by_label
    return parsed


def fingerprint_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def kept_place(folder: Place, fingerprint: str) -> Place | None:
    """Where a stage in ``folder`` keeps its earlier marker of this fingerprint; None if it is not a fingerprint."""
    is_one = _FINGERPRINT.fullmatch(fingerprint)
    return folder / GENERATIONS_FOLDER / f"{fingerprint}.json" if is_one else None


def difference(marker: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """How a marker differs from this identity, for people; empty if it does not."""
    for key, ours in identity.items():
        theirs = marker.get(key)
        if theirs == ours:
            continue
        if key == "config" and isinstance(theirs, dict):
            there, asked = _flat(theirs), _flat(ours)
            return ", ".join(
                f"{name} {there.get(name)} there, {asked.get(name)} asked"
                for name in asked | there
                if there.get(name) != asked.get(name)
            )
        return "made from other input" if key == "input" else f"{key} {theirs!r} there, {ours!r} asked"
    return ""


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without nested ones: the member ``b`` of ``a`` is called "a b"."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value.items() if isinstance(value, Mapping) else ()
        flat |= {f"{name} {each}": what for each, what in inner} or {name: value}
    return flat

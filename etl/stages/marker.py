"""Markers, and generations: how a finished stage takes other input without being rebuilt.

The stage's marker and the table beside it name its files, which never change. A renewal adds files, and its marker
replaces the one before, which is kept byte for byte under ``generations/``, named by its fingerprint: what was made
from it still finds it.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from etl.errors import DataError
from etl.stages.entries import Entries, EntryTable
from etl.stages.names import GENERATIONS_FOLDER
from etl.storage.place import Place

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Generation:
    """A marker of the stage in ``folder``, and its fingerprint: the SHA-256 of its bytes, in hexadecimal."""

    marker: dict[str, Any]
    fingerprint: str
    folder: Place
    table: EntryTable | None = None

    @classmethod
    def read(cls, place: Place, folder: Place, table: EntryTable | None = None) -> "Generation":
        """The marker in this file. Raises DataError if it cannot be parsed."""
        data = place.read_bytes()
        try:
            marker = json.loads(data)
            if not isinstance(marker, dict):
                raise ValueError("it is not an object")
            return cls(marker, fingerprint_of(data), folder, table)
        except ValueError as error:
            raise DataError(f"{place} is not JSON ({error}); it was damaged or written by something else") from None

    @cached_property
    def entries(self) -> Entries:
        """The packs of a generation of ``raw``, or the parts of one of ``normalized``.

        Raises DataError if their table is not there as it was written.
        """
        assert self.table is not None, f"{self.folder} has no packs or parts"
        return self.table.read(self.folder, self.marker)


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

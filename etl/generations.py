"""Generations: how a finished stage takes other input without being made anew.

The stage's marker names its files, which never change. A renewal adds files, and its marker replaces the one before,
which is kept byte for byte under ``generations/``, named by its fingerprint: whoever was made from it still finds it.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from etl.errors import EnvironmentFailure
from etl.storage import Place

GENERATIONS_FOLDER = "generations"

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Generation:
    """A marker, and its fingerprint: the SHA-256 of its bytes, in hexadecimal."""

    marker: dict[str, Any]
    fingerprint: str

    @classmethod
    def read(cls, place: Place) -> "Generation":
        """The marker in this file. Raises EnvironmentFailure where it cannot be parsed."""
        data = place.read_bytes()
        fingerprint = fingerprint_of(data)
        try:
            text = data.decode()
            del data  # markers may be large
            return cls(json.loads(text, object_hook=_with_compact_counts), fingerprint)
        except ValueError as error:
            raise EnvironmentFailure(
                f"{place} is not JSON ({error}); it was damaged or written by something else"
            ) from None


def _with_compact_counts(parsed: dict[str, Any]) -> dict[str, Any]:
    """Examples by label as arrays of 4 bytes each: as lists those of 10,000 parts x 1,000 classes would take 80 MB."""
    if isinstance(examples := parsed.get("examples"), dict):
        for split, by_label in examples.items():
            if isinstance(by_label, list):
                examples[split] = array("I", by_label)
    return parsed


@dataclass(frozen=True)
class Renewal:
    """How a stage takes other input of the same configuration, where it is finished: as its next generation.

    ``parent`` is the fingerprint of the marker that the renewal was planned from, None where there was none. ``files``
    gives the files that a marker names in ``folders``, as paths below the stage's; other files there are what a
    renewal that was killed left. ``wanted`` says that there is something to renew though the identity is the same;
    ``changes`` is what of the identity may be another.
    """

    parent: str | None
    folders: tuple[str, ...]
    files: Callable[[dict[str, Any]], Iterable[str]]
    wanted: bool = False
    changes: frozenset[str] = frozenset({"input"})


def difference(marker: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """In what a marker is not of this identity, for people; empty where it is."""
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
    """A configuration without those within it: of a member ``b`` of ``a`` the name is "a b"."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value.items() if isinstance(value, Mapping) else ()
        flat |= {f"{name} {each}": what for each, what in inner} or {name: value}
    return flat


def fingerprint_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def kept_place(folder: Place, fingerprint: str) -> Place | None:
    """Where a stage in ``folder`` keeps its earlier marker of this fingerprint; None for what is no fingerprint."""
    known = _FINGERPRINT.fullmatch(fingerprint)
    return folder / GENERATIONS_FOLDER / f"{fingerprint}.json" if known else None


def kept_generations(folder: Place) -> Iterator[Generation]:
    """The earlier generations of the stage in ``folder``, by fingerprint."""
    for info in (folder / GENERATIONS_FOLDER).children():
        place = folder / GENERATIONS_FOLDER / info.base_name
        yield Generation.read(place)


def unnamed_files(folder: Place, renewal: Renewal, markers: Iterable[dict[str, Any]]) -> list[Place]:
    """The files in ``renewal.folders`` that none of these markers names."""
    named = {name for marker in markers for name in renewal.files(marker)}
    return [
        folder / below / info.base_name
        for below in renewal.folders
        for info in (folder / below).children()
        if f"{below}/{info.base_name}" not in named
    ]

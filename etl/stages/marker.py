"""Generations: how a finished stage takes other input without being made anew.

The stage's marker names its files, which never change. A renewal adds files, and its marker replaces the one before,
which is kept byte for byte under ``generations/``, named by its fingerprint: whoever was made from it still finds it.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from etl.errors import DataError, UsageError
from etl.storage.place import Place

GENERATIONS_FOLDER = "generations"

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
                raise ValueError("it is no object")
            return cls(marker, fingerprint)
        except ValueError as error:
            raise DataError(f"{place} is not JSON ({error}); it was damaged or written by something else") from None


def _with_compact_counts(parsed: dict[str, Any]) -> dict[str, Any]:
    """Examples by label as arrays of 4 bytes each: as lists those of 10,000 parts x 1,000 classes would take 80 MB."""
    if isinstance(examples := parsed.get("examples"), dict):
        for split, by_label in examples.items():
            with suppress(TypeError, OverflowError):  # no counts: it stays as it is, for whoever checks it
                examples[split] = array("I", by_label) if isinstance(by_label, list) else by_label
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


RUN_FILE = "run.json"
WORK_FOLDER = "_work"
PLAN_FILE = "plan.json"


@dataclass
class Finished:
    """One stage's folder. ``name`` is its command, ``marker_name`` its marker's file name.

    ``elsewhere`` says what to do for a second one beside it.
    """

    name: str
    folder: Place
    marker_name: str
    format: str
    elsewhere: str = "use another place"

    @property
    def marker(self) -> Place:
        return self.folder / self.marker_name

    @property
    def work(self) -> Place:
        return self.folder / WORK_FOLDER

    @property
    def plan(self) -> Place:
        return self.work / PLAN_FILE

    def read_marker(self) -> dict[str, Any]:
        """The marker of this finished stage.

        Raises UsageError where the stage is not finished, or was written by another version of ringslice.
        """
        return self.read_generation().marker

    def read_generation(self) -> Generation:
        """The current marker with its fingerprint. Raises as `read_marker` does."""
        if not self.marker.exists():
            raise UsageError(
                f"{self.folder} holds no finished {self.name} (no {self.marker_name}); run: ringslice {self.name}"
            )
        return self._checked(self.marker, Generation.read(self.marker))

    def find_generation(self, fingerprint: str) -> dict[str, Any] | None:
        """The marker with this fingerprint, the current one or one that was kept; None where there is none.

        Raises UsageError where it was written by another version of ringslice.
        """
        kept = kept_place(self.folder, fingerprint)
        for place in (self.marker, kept):
            if place is not None and place.exists():
                found = Generation.read(place)
                if found.fingerprint == fingerprint:
                    return self._checked(place, found).marker
        return None

    def _checked(self, place: Place, found: Generation) -> Generation:
        if found.marker.get("format") != self.format:
            raise UsageError(
                f"{place} has format {found.marker.get('format')!r}, this version reads {self.format!r};"
                f" use the ringslice that wrote it, or run {self.name} again with --overwrite"
            )
        return found

    def fingerprint(self) -> str:
        """SHA-256 of the marker: what the next stage records as its input."""
        return self.marker.sha256()

    def read_run(self) -> dict[str, Any]:
        """What is known of the run that made this stage; empty where nothing is, or the file is no JSON object."""
        place = self.folder / RUN_FILE
        try:
            return place.read_json() if place.exists() else {}
        except DataError:
            return {}

    def refuse_another(self, marker: dict[str, Any], identity: dict[str, Any]) -> None:
        """Raise UsageError where ``marker`` differs from ``identity``."""
        if what := difference(marker, identity):
            raise UsageError(
                f"{self.folder} already holds another {self.name} ({what});"
                f" {self.elsewhere}, or --overwrite to replace it"
            )

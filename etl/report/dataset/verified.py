"""What the last ``verify`` found of the slices, and the contents that they hold under several keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etl.formats import parquet_tables
from etl.stages.stage import Stage
from etl.storage.place import Place

SHOWN_FINDINGS = 20
SHOWN_CONTENTS = 20
SHOWN_KEYS = 12


@dataclass(frozen=True)
class Duplicate:
    """One content and the examples that have it: (key, class, split)."""

    sha256: str
    examples: tuple[tuple[str, str, str], ...]
    number: int

    @property
    def across_splits(self) -> bool:
        return len({split for _, _, split in self.examples}) > 1

    @property
    def across_classes(self) -> bool:
        return len({name for _, name, _ in self.examples}) > 1


@dataclass(frozen=True)
class Verified:
    """``state`` is 'sound', 'findings', 'outdated' (of other slices of this name) or 'unknown' (never verified)."""

    state: str
    finished: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Mapping[str, str], ...] = ()
    all_findings: int = 0
    every_stage: bool = False
    duplicates: Mapping[str, int] | None = None
    contents: tuple[Duplicate, ...] = ()


def read_verified(stage: Stage, slices: str, classes: list[str]) -> Verified:
    """What is known from the finished ``verify`` of the slices whose fingerprint is ``slices``."""
    if not stage.marker.exists():
        return Verified("unknown")
    marker, finished = stage.read_marker(), stage.read_run().get("finished")
    if marker["input"] != slices:
        return Verified("outdated", finished)
    findings = marker["findings"]
    return Verified(
        "findings" if findings else "sound",
        finished,
        marker["counts"],
        tuple(findings[:SHOWN_FINDINGS]),
        len(findings) + marker.get("more_findings", 0),
        marker["config"]["every_stage"],
        marker["duplicates"],
        _contents(stage.folder / marker["tables"]["duplicates"]["file"], classes) if marker["duplicates"] else (),
    )


def _contents(place: Place, classes: list[str]) -> tuple[Duplicate, ...]:
    """The contents to show, those in several splits first; the table is read in batches and not kept."""
    across: list[Duplicate] = []
    others: list[Duplicate] = []
    group = _Group(classes)
    for batch in parquet_tables.iterate_groups(place, ["sha256", "key", "label", "split"]):
        for row in batch.to_pylist():
            if row["sha256"] != group.sha256:
                _keep(group, across, others)
                group = _Group(classes, row["sha256"])
            group.add(row)
            if len(across) == SHOWN_CONTENTS:
                return tuple(across)
    _keep(group, across, others)
    return tuple((across + others)[:SHOWN_CONTENTS])


class _Group:
    """The rows of one content, as they come; of very many only some are kept, each class and split once."""

    def __init__(self, classes: list[str], sha256: bytes = b"") -> None:
        self._classes = classes
        self.sha256 = sha256
        self.number = 0
        self.examples: list[tuple[str, str, str]] = []
        self._kinds: set[tuple[str, str]] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        self.number += 1
        kind = (self._classes[row["label"]], row["split"])
        if len(self.examples) < SHOWN_KEYS or kind not in self._kinds:
            self.examples.append((row["key"], *kind))
        self._kinds.add(kind)


def _keep(group: _Group, across: list[Duplicate], others: list[Duplicate]) -> None:
    if not group.number:
        return
    found = Duplicate(group.sha256.hex(), tuple(group.examples), group.number)
    kept = across if found.across_splits else others
    if len(kept) < SHOWN_CONTENTS:
        kept.append(found)

"""What the last ``verify`` found, and contents under several keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from etl.formats import parquet_tables
from etl.stages.stage import Stage
from etl.storage.place import Place

SHOWN_FINDINGS = 20
SHOWN_CONTENTS = 20
SHOWN_KEYS = 12


@dataclass(frozen=True)
class Duplicate:
    """One content, its ``number`` of examples, and the first of them: (key, class, split)."""

    sha256: str
    examples: tuple[tuple[str, str, str], ...]
    number: int
    across_splits: bool
    across_classes: bool


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
    """From the finished ``verify`` of the slices whose fingerprint is ``slices``."""
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
    """The contents to show, those in several splits first; only their keys are kept in memory."""
    table = parquet_tables.read_table(place, ["sha256", "label", "split"])
    counts = [("label", "count"), ("split", "count_distinct"), ("label", "count_distinct")]
    contents = table.group_by("sha256", use_threads=False).aggregate(counts)
    order = np.argsort(contents["split_count_distinct"].to_numpy() == 1, kind="stable")[:SHOWN_CONTENTS]
    shown = contents.take(order)
    examples: dict[bytes, list[tuple[str, str, str]]] = {each: [] for each in shown["sha256"].to_pylist()}
    for group in parquet_tables.iterate_groups(place, ["sha256", "key", "label", "split"]):
        for row in group.filter(pc.is_in(group["sha256"], value_set=shown["sha256"].combine_chunks())).to_pylist():
            examples[row["sha256"]].append((row["key"], classes[row["label"]], row["split"]))
    return tuple(
        Duplicate(
            each["sha256"].hex(),
            tuple(examples[each["sha256"]][:SHOWN_KEYS]),
            each["label_count"],
            each["split_count_distinct"] > 1,
            each["label_count_distinct"] > 1,
        )
        for each in shown.to_pylist()
    )

"""What the last ``verify`` found, and contents under several keys."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from etl.formats import parquet_tables
from etl.stages.stage import Stage
from etl.storage.place import Place

SHOWN_FINDINGS = 20
SHOWN_CONTENTS = 20
SHOWN_KEYS = 12

Facts = dict[str, Any]


def read_verified(stage: Stage, slices: str, classes: Sequence[str]) -> Facts:
    """From the finished ``verify`` of the slices whose fingerprint is ``slices``, by the template's names.

    ``state`` is 'sound', 'findings', 'outdated' (of other slices of this name) or 'unknown' (never verified).
    """
    found: Facts = {"state": "unknown", "finished": None, "duplicates": None, "contents": []}
    if not stage.marker.exists():
        return found
    marker, finished = stage.read_marker(), stage.read_run().get("finished")
    if marker["input"] != slices:
        return found | {"state": "outdated", "finished": finished}
    findings, duplicates = marker["findings"], marker["duplicates"]
    return {
        "state": "findings" if findings else "sound",
        "finished": finished,
        "findings": findings[:SHOWN_FINDINGS],
        "all_findings": len(findings) + marker.get("more_findings", 0),
        "every_stage": marker["config"]["every_stage"],
        "duplicates": duplicates,
        "contents": _contents(stage.folder / marker["tables"]["duplicates"]["file"], classes) if duplicates else [],
    }


def _contents(place: Place, classes: Sequence[str]) -> list[Facts]:
    """The contents to show, those in several splits first: ``examples`` are the first (key, class, split) of each."""
    table = parquet_tables.read_table(place, ["sha256", "label", "split"])
    counts = [("label", "count"), ("split", "count_distinct"), ("label", "count_distinct")]
    contents = table.group_by("sha256", use_threads=False).aggregate(counts)
    order = np.argsort(contents["split_count_distinct"].to_numpy() == 1, kind="stable")[:SHOWN_CONTENTS]
    shown, examples = contents.take(order), defaultdict(list)
    for group in parquet_tables.iterate_groups(place, ["sha256", "key", "label", "split"]):
        for row in group.filter(pc.is_in(group["sha256"], value_set=shown["sha256"].combine_chunks())).to_pylist():
            examples[row["sha256"]].append((row["key"], classes[row["label"]], row["split"]))
    return [
        {
            "sha256": content["sha256"].hex(),
            "examples": examples[content["sha256"]][:SHOWN_KEYS],
            "number": content["label_count"],
            "across_splits": content["split_count_distinct"] > 1,
            "across_classes": content["label_count_distinct"] > 1,
        }
        for content in shown.to_pylist()
    ]

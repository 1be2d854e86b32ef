"""What of packs and parts is live: their rows, less those whose image the source has no more (or not like that).

Packs and parts never change; which of their rows are removed stands in a table that the markers of ``raw`` and of
``normalized`` name. A row is removed for good: an image that comes back is packed anew.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from etl.formats import parquet_tables, schemas
from etl.normalized.parts import pack_of, part_facts, read_rows, rejects_places
from etl.raw.removed import Removed
from etl.storage.place import Place


def live_rows(normalized: Place, part: Mapping[str, Any], removed: Removed, columns: list[str]) -> pa.Table:
    """These columns of the rows of a part that are live, in its order. ``part`` is what the marker says of it."""
    if not part["removed"]:
        return read_rows(normalized, part["part"], columns)
    rows = read_rows(normalized, part["part"], list(dict.fromkeys(["key", *columns])))
    return rows.filter(pa.array(removed.live(pack_of(part), rows["key"]))).select(columns)


def live_facts(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """``records``, ``bytes``, ``rejects`` (count, by_reason) and ``examples`` of a part, of its live images alone."""
    live: Mapping[str, Any] = part.get("live", part)
    return live


def count_live(normalized: Place, part: Mapping[str, Any], removed: Removed, classes: int) -> dict[str, Any]:
    """What `live_facts` gives for a part some of whose images are removed: read from its rows and its rejects."""
    rejects = schemas.REJECTS.empty_table()
    if part["rejects"]["count"]:
        listed = parquet_tables.read_table(rejects_places(normalized, part["part"])[1], ["key", "reason"])
        rejects = listed.filter(pa.array(removed.live(pack_of(part), listed["key"])))
    return part_facts(live_rows(normalized, part, removed, ["split", "label", "size"]), rejects, classes)


def count_live_images(parts: Iterable[Mapping[str, Any]], classes: int) -> dict[str, Any]:
    """What the marker counts of the live images of all ``parts``, its entries.

    Raises ValueError if a part has more classes; one that was made when there were fewer has none of the later ones.
    """
    reasons: Counter[str] = Counter()
    by_class = np.zeros(classes, dtype=np.int64)
    good = size_bytes = 0
    for part in parts:
        live = live_facts(part)
        good, size_bytes = good + live["records"], size_bytes + live["bytes"]
        reasons.update(live["rejects"]["by_reason"])
        for counts in live["examples"].values():
            by_class[: len(counts)] += np.asarray(counts, dtype=np.int64)
    rejects = reasons.total()
    return {
        "input": good + rejects,
        "good": good,
        "rejects": rejects,
        "rejects_by_reason": dict(sorted(reasons.items())),
        "bytes": size_bytes,
        "by_class": by_class.tolist(),
    }

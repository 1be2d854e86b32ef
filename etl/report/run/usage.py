"""What each rank sent, received and kept in memory, from the lines of ``ranks`` in the metrics. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FIELDS = ("sent_bytes", "received_bytes", "peak_memory_bytes")


@dataclass(frozen=True)
class RankUsage:
    """Bytes that ``rank`` sent and received in a step, on average, and the most memory that its process had."""

    rank: int
    sent: float
    received: float
    peak_memory: int


def usage_by_rank(lines: Sequence[Mapping[str, Any]]) -> list[RankUsage]:
    """By rank; of an elastic run, from the steps on its last number of ranks. Empty if there are no lines."""
    if not lines:
        return []
    ranks = len(lines[-1]["sent_bytes"])
    last = [line for line in lines if len(line["sent_bytes"]) == ranks]
    steps = sum(line["steps"] for line in last)
    sent, received, memory = (np.array([line[name] for line in last]) for name in FIELDS)
    columns = (sent.sum(axis=0) / steps).tolist(), (received.sum(axis=0) / steps).tolist(), memory.max(axis=0).tolist()
    return [RankUsage(rank, *each) for rank, each in enumerate(zip(*columns, strict=True))]

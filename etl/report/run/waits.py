"""What the time of a step went to, and what each rank sent, received and kept in memory. Pure."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from etl.report.run.metrics import OTHER, OWN_S, PARTS, Metrics, Series, smooth

OWN = "all but all-reduce"  # of a rank: the others wait for the one with the most


@dataclass(frozen=True)
class PartTimes:
    """Seconds that the ranks spent in one part of a step: of the means over the ranks the mean, median and percentile
    over the steps, the largest of any rank, and the share of all their time.

    ``slowest`` is the rank that had the most of it most often, in a ``slowest_share`` of the steps; None for the rest.
    """

    part: str
    mean_s: float
    median_s: float
    p95_s: float
    share: float
    largest_s: float | None = None
    slowest: int | None = None
    slowest_share: float | None = None


@dataclass(frozen=True)
class RankUsage:
    """Bytes that ``rank`` sent and received in a step, on average, and the most memory that its process had."""

    rank: int
    sent: int
    received: int
    peak_memory: int


def part_times(metrics: Metrics) -> list[PartTimes]:
    """One for each of `PARTS`, the rest, and all that is not the all-reduce."""
    shares = dict(zip((*PARTS, OTHER), shares_of(metrics), strict=True))
    found = [_of_ranks(metrics, part, name, shares[part]) for part, name in PARTS.items()]
    rest = PartTimes(OTHER, *_summary(metrics.parts_s[:, -1]), shares[OTHER])
    return [*found, rest, _of_ranks(metrics, OWN, OWN_S, sum(shares.values()) - shares["all-reduce"])]


def _of_ranks(metrics: Metrics, part: str, name: str, share: float) -> PartTimes:
    slowest = Counter(metrics.over_ranks(name, "slowest_rank").astype(int).tolist())
    rank, steps = min(slowest.items(), key=lambda each: (-each[1], each[0]))
    largest = float(metrics.over_ranks(name, "max").max())
    own = _summary(metrics.over_ranks(name))
    return PartTimes(part, *own, share, largest, rank, steps / metrics.steps.num_rows)


def _summary(seconds: Series) -> tuple[float, float, float]:
    median, p95 = np.quantile(seconds, [0.5, 0.95])
    return float(seconds.mean()), float(median), float(p95)


def shares_of(metrics: Metrics) -> list[float]:
    """The share of each part in the time of all ranks; all 0 if no time passed."""
    sums = (metrics.parts_s * metrics.column("ranks")[:, None]).sum(axis=0)
    return (sums / (sums.sum() or 1.0)).tolist()


def share_curves(metrics: Metrics) -> dict[str, Series]:
    """The share of each part in the time of all ranks, by step: of the last steps at each."""
    seconds = np.stack([smooth(each) for each in (metrics.parts_s * metrics.column("ranks")[:, None]).T])
    return dict(zip((*PARTS, OTHER), seconds / np.maximum(seconds.sum(axis=0), 1e-12), strict=True))


def usage_by_rank(metrics: Metrics) -> list[RankUsage]:
    """By rank; of an elastic run, from the steps on its last number of ranks. Empty if nothing was measured."""
    lines = metrics.usage
    own = [line for line in lines if len(line["sent_bytes"]) == len(lines[-1]["sent_bytes"])]
    if not own:
        return []
    steps = sum(line["steps"] for line in own)
    sent, received, memory = (
        np.array([line[name] for line in own]) for name in ("sent_bytes", "received_bytes", "peak_memory_bytes")
    )
    means = [np.rint(each.sum(axis=0) / steps).astype(int).tolist() for each in (sent, received)]
    return [RankUsage(rank, *each) for rank, each in enumerate(zip(*means, memory.max(axis=0).tolist(), strict=True))]

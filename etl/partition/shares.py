"""The arithmetic of exact shares: which split and which slice every example goes to. Pure, and tested as arithmetic.

Examples belong to *strata* (classes; one stratum for all if the partition is uniform; split by the source's own
splits if those are kept). A seeded permutation takes each example's rank within its stratum; the permuted rank
decides the split, and within the split examples go to slices round-robin, each stratum continuing where the one before
it stopped. So each split holds its exact share of every stratum, any two slices of a split differ by at most one
example, in all and within each stratum, and no list of examples is ever made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from etl.partition.permutation import Integers, permute


def apportion(total: int, fractions: Sequence[Fraction]) -> list[int]:
    """``total`` divided by ``fractions`` (their sum is 1) into whole numbers by largest remainder: each within one."""
    quotas = [total * fraction for fraction in fractions]
    counts = [int(quota) for quota in quotas]
    order = sorted(range(len(quotas)), key=lambda i: (counts[i] - quotas[i], i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


def round_quotas(quotas: Sequence[Sequence[Fraction]]) -> Integers:
    """A controlled rounding of ``quotas`` (strata x splits, at most three splits, rows adding up to whole numbers).

    Rows keep their sums, columns become `apportion` of the whole, each cell is within one of its quota. Every cell
    gets its floor; what is left of a row goes, one each, to the splits that lack most (the greedy step of Gale and
    Ryser's theorem, which never runs out here), then those with the larger remainder.
    """
    rows = [sum(row, Fraction(0)) for row in quotas]
    columns = [sum(column, Fraction(0)) for column in zip(*quotas, strict=True)]
    total = int(sum(rows))
    totals = apportion(total, [column / total for column in columns]) if total else [0] * len(columns)
    counts = np.array([[int(quota) for quota in row] for row in quotas], dtype=np.int64).reshape(len(rows), -1)
    lacking = [int(lack) for lack in np.array(totals) - counts.sum(axis=0)]
    for s, row in enumerate(quotas):
        order = sorted(range(len(row)), key=lambda j: (-lacking[j], counts[s, j] - row[j], j))
        for j in order[: int(rows[s]) - int(counts[s].sum())]:
            counts[s, j] += 1
            lacking[j] -= 1
    return counts


def top_up(known: Integers, free: Sequence[int], fractions: Sequence[Fraction]) -> Integers:
    """How many of the ``free`` examples of each stratum each split gets, where it has ``known`` ones already.

    ``known`` is int64 of shape (strata, splits), and so is the result: what brings each split nearest to its fraction
    of all, without taking anything away from another.
    """
    quotas = []
    for have, size in zip(known.tolist(), free, strict=True):
        whole = sum(have) + size
        wanted = [max(Fraction(0), whole * fraction - own) for fraction, own in zip(fractions, have, strict=True)]
        scale = Fraction(size) / (sum(wanted) or 1)
        quotas.append([each * scale for each in wanted])
    return round_quotas(quotas)


def worker_of(number: int, workers: int, groups: int) -> tuple[int, int]:
    """Group of workers, and worker within it, that the ``number``-th of a split's slices belongs to.

    Examples go to slices in turn. So do slices to groups, and within these to workers: any two groups, and any two
    workers, are within one example of each other too.
    """
    return number % groups, number % workers // groups


@dataclass(frozen=True)
class SharePlan:
    """How many examples of each stratum go to each split, and how they go to its slices.

    ``counts`` is int64 of shape (strata, splits), the examples of each stratum in each split; ``slices`` the number of
    slices of each split. Slices are numbered through all splits, in the order of the splits.
    """

    counts: Integers
    slices: tuple[int, ...]
    seed: int

    def __post_init__(self) -> None:
        if self.counts.ndim != 2 or self.counts.shape[1] != len(self.slices):
            raise ValueError(f"counts of shape {self.counts.shape} do not fit {len(self.slices)} splits")
        if (self.counts < 0).any() or min(self.slices, default=0) < 0:
            raise ValueError("counts and slices cannot be negative")
        if any(total and not number for total, number in zip(self.counts.sum(axis=0), self.slices, strict=True)):
            raise ValueError("a split with examples needs a slice")

    @property
    def sizes(self) -> Integers:
        """Examples of each stratum: int64 of shape (strata,)."""
        return self.counts.sum(axis=1)

    def assign(self, stratum: int, ranks: Integers) -> tuple[Integers, Integers]:
        """Split and slice (numbered through), int64 of the shape of ``ranks``, of these ranks within a stratum."""
        bounds = np.cumsum(self.counts[stratum])
        size = int(bounds[-1])
        places = permute(ranks, size, "share", self.seed, stratum)
        split = np.searchsorted(bounds, places, side="right")
        within_split = places - np.concatenate(([0], bounds[:-1]))[split]
        in_earlier_strata = self.counts[:stratum].sum(axis=0)
        slices = np.array(self.slices, dtype=np.int64)
        first_slice = np.cumsum(slices) - slices
        return split, first_slice[split] + (in_earlier_strata[split] + within_split) % slices[split]

    def assign_part(self, strata: Integers, first: Integers) -> tuple[Integers, Integers]:
        """Split and slice of the examples of one part.

        ``strata`` (examples,) is each example's stratum in the part's order, ``first`` (strata,) the rank of the part's
        first example within each stratum: the examples of that stratum in all parts before.
        """
        splits, slices = np.empty_like(strata), np.empty_like(strata)
        for stratum in np.unique(strata):
            here = np.flatnonzero(strata == stratum)
            ranks = first[stratum] + np.arange(len(here), dtype=np.int64)
            splits[here], slices[here] = self.assign(int(stratum), ranks)
        return splits, slices

    def slice_records(self) -> Integers:
        """Examples of each slice: int64 of shape (slices,)."""
        records = [
            total // number + (np.arange(number) < total % number)
            for total, number in zip(self.counts.sum(axis=0), self.slices, strict=True)
            if number
        ]
        return np.concatenate(records) if records else np.zeros(0, dtype=np.int64)

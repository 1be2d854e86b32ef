"""From counts of examples to a plan of shares: the stratum of an example, and the rank that each part begins at.

Every example has its split by now; a plan shares the examples of each split among its slices.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from etl.errors import DataError
from etl.partition.config import SPLIT_NAMES, ShardConfig
from etl.partition.permutation import Integers
from etl.partition.shares import SharePlan

# Examples of a part by split (its number in SPLIT_NAMES; -1: none of its own) and label: int64 (splits + 1, classes).
PartCounts = Integers


def count_part(examples: Mapping[str, Sequence[int]], classes: int) -> PartCounts:
    """Counts of a part from its facts, which have them by the source's split ('' if it gave none) and label."""
    counts = np.zeros((len(SPLIT_NAMES) + 1, classes), dtype=np.int64)
    for split, by_label in examples.items():
        counts[SPLIT_NAMES.index(split) if split else -1, : len(by_label)] += np.array(by_label, dtype=np.int64)
    return counts


def split_sizes(total: PartCounts) -> dict[str, int]:
    """Examples of each split that is not empty, by name; ``total`` counts all examples.

    Raises DataError if one has no split, or nothing is left to train on.
    """
    if without := int(total[-1].sum()):
        raise DataError(
            f"{without} images have no split of the source's own; give fractions: --split train=0.8,test=0.2"
        )
    sizes = {name: int(total[number].sum()) for number, name in enumerate(SPLIT_NAMES)}
    if not sizes.get("train"):
        raise DataError(f"no example is left to train on: {sizes}; give another --split")
    return {name: sizes[name] for name in SPLIT_NAMES if sizes.get(name)}


@dataclass(frozen=True)
class Strata:
    """How examples fall into strata: by split, and by class where ``stratified``."""

    classes: int
    stratified: bool

    @property
    def _groups(self) -> int:
        return self.classes if self.stratified else 1

    @property
    def number(self) -> int:
        return self._groups * len(SPLIT_NAMES)

    def of_examples(self, labels: Integers, splits: Integers) -> Integers:
        """Stratum of each example, from label and split (number): int64 of shape (examples,)."""
        return splits * self._groups + (labels if self.stratified else 0)

    def of_counts(self, counts: PartCounts) -> Integers:
        """Examples in each stratum: int64 of shape (strata,)."""
        by_split = counts[:-1]
        return (by_split if self.stratified else by_split.sum(axis=1, keepdims=True)).reshape(-1)

    def split_counts(self, sizes: Integers, splits: Sequence[str]) -> Integers:
        """Examples of each stratum in each of ``splits``: int64 of shape (strata, splits)."""
        counts = np.zeros((self.number, len(splits)), dtype=np.int64)
        for column, name in enumerate(splits):
            first = SPLIT_NAMES.index(name) * self._groups
            counts[first : first + self._groups, column] = sizes[first : first + self._groups]
        return counts


@dataclass(frozen=True)
class SlicePlan:
    """A plan of shares over strata; ``splits`` are the names of its splits."""

    strata: Strata
    shares: SharePlan
    splits: tuple[str, ...]

    @classmethod
    def of_total(cls, config: ShardConfig, total: PartCounts) -> "SlicePlan":
        """The plan of ``total`` examples."""
        strata = Strata(total.shape[1], config.partition == "stratified")
        counts = strata.split_counts(strata.of_counts(total), list(config.slices))
        return cls(strata, SharePlan(counts, tuple(config.slices.values()), config.seed), tuple(config.slices))

    def firsts(self, parts: Iterable[PartCounts]) -> Iterator[dict[int, int]]:
        """For each part, the rank of its first example within each stratum that it has any of."""
        before = np.zeros(self.strata.number, dtype=np.int64)
        for counts in parts:
            own = self.strata.of_counts(counts)
            present = np.flatnonzero(own)
            yield dict(zip(present.tolist(), before[present].tolist(), strict=True))
            before += own

    def assign(self, labels: Integers, splits: Integers, firsts: Mapping[int, int]) -> tuple[Integers, Integers]:
        """Split (number within ``splits`` of this plan) and slice (numbered through) of each example of a part.

        ``labels`` and ``splits`` (examples,) are the examples' classes and splits in the part's order, ``firsts``
        what `firsts` gave for the part.
        """
        first = np.zeros(self.strata.number, dtype=np.int64)
        first[list(firsts)] = list(firsts.values())
        return self.shares.assign_part(self.strata.of_examples(labels, splits), first)

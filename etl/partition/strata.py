"""From counts of examples to a plan of shares: the stratum of an example, and the rank that each part begins at."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from etl.errors import DataError
from etl.partition.config import SPLIT_NAMES, Fractions, ShardConfig
from etl.partition.permutation import Integers
from etl.partition.shares import SharePlan, split_counts

# Examples of a part by split (its number in SPLIT_NAMES; -1: none of its own) and label: int64 (splits + 1, classes).
PartCounts = Integers


def count_part(examples: Mapping[str, Sequence[int]], classes: int) -> PartCounts:
    """Counts of a part from its facts, which tell them by the source's split ('' where it gave none) and label."""
    counts = np.zeros((len(SPLIT_NAMES) + 1, classes), dtype=np.int64)
    for split, by_label in examples.items():
        counts[SPLIT_NAMES.index(split) if split else -1, : len(by_label)] += np.array(by_label, dtype=np.int64)
    return counts


def split_sizes(total: PartCounts, fractions: Fractions | None) -> dict[str, int]:
    """Examples of each split that is not empty, by name.

    ``total`` counts all examples; without ``fractions`` each must have a split. Raises DataError where one has none, or
    nothing is left to train on.
    """
    if fractions is None:
        if without := int(total[-1].sum()):
            raise DataError(
                f"{without} images have no split of the source's own; give fractions: --split train=0.8,test=0.2"
            )
        sizes = {name: int(total[number].sum()) for number, name in enumerate(SPLIT_NAMES)}
    else:
        sizes = dict(
            zip(fractions, split_counts([int(total.sum())], list(fractions.values()))[0].tolist(), strict=True)
        )
    if not sizes.get("train"):
        raise DataError(f"no example is left to train on: {sizes}; give another --split")
    return {name: sizes[name] for name in SPLIT_NAMES if sizes.get(name)}


@dataclass(frozen=True)
class Strata:
    """How examples fall into strata: by class where ``stratified``, by split where examples have ``own_splits``."""

    classes: int
    stratified: bool
    own_splits: bool

    @property
    def _groups(self) -> int:
        return self.classes if self.stratified else 1

    @property
    def number(self) -> int:
        return self._groups * (len(SPLIT_NAMES) if self.own_splits else 1)

    def of_examples(self, labels: Integers, splits: Integers) -> Integers:
        """Stratum of each example, from label and own split (number): int64 of shape (examples,)."""
        group = labels if self.stratified else np.zeros_like(labels)
        return splits * self._groups + group if self.own_splits else group

    def of_counts(self, counts: PartCounts) -> Integers:
        """Examples in each stratum: int64 of shape (strata,)."""
        by_split = counts[:-1] if self.own_splits else counts.sum(axis=0, keepdims=True)
        return (by_split if self.stratified else by_split.sum(axis=1, keepdims=True)).reshape(-1)

    def split_counts(self, sizes: Integers, fractions: Fractions | None, splits: Sequence[str]) -> Integers:
        """Examples of each stratum in each of ``splits``: int64 of shape (strata, splits)."""
        if not self.own_splits:
            assert fractions is not None
            counts = split_counts([int(size) for size in sizes], list(fractions.values()))
            return counts[:, [list(fractions).index(name) for name in splits]]
        counts = np.zeros((self.number, len(splits)), dtype=np.int64)
        for column, name in enumerate(splits):
            first = SPLIT_NAMES.index(name) * self._groups
            counts[first : first + self._groups, column] = sizes[first : first + self._groups]
        return counts


@dataclass(frozen=True)
class Dealing:
    """A plan of shares over strata; ``splits`` are the names of its splits."""

    strata: Strata
    plan: SharePlan
    splits: tuple[str, ...]

    @classmethod
    def of_total(cls, config: ShardConfig, total: PartCounts, fractions: Fractions | None) -> "Dealing":
        """The dealing of ``total`` examples; without ``fractions`` each goes to its own split."""
        strata = Strata(total.shape[1], config.partition == "stratified", fractions is None)
        counts = strata.split_counts(strata.of_counts(total), fractions, list(config.slices))
        return cls(strata, SharePlan(counts, tuple(config.slices.values()), config.seed), tuple(config.slices))

    def firsts(self, parts: Iterable[PartCounts]) -> Iterator[dict[int, int]]:
        """For each part, the rank of its first example within each stratum that it has any of."""
        before = np.zeros(self.strata.number, dtype=np.int64)
        for counts in parts:
            own = self.strata.of_counts(counts)
            present = np.flatnonzero(own)
            yield dict(zip(present.tolist(), before[present].tolist(), strict=True))
            before += own

    def deal(self, labels: Integers, splits: Integers, firsts: Mapping[int, int]) -> tuple[Integers, Integers]:
        """Split (number within ``splits`` of this dealing) and slice (numbered through) of each example of a part.

        ``labels`` and ``splits`` (examples,) are the examples' classes and own splits in the part's order, ``firsts``
        what `firsts` gave for the part.
        """
        first = np.zeros(self.strata.number, dtype=np.int64)
        first[list(firsts)] = list(firsts.values())
        return self.plan.deal(self.strata.of_examples(labels, splits), first)

"""From the facts of parts to a plan of shares: the stratum of an example, and the rank that each part begins at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from etl.config import SPLIT_NAMES, Fractions, ShardConfig
from etl.errors import DataError
from etl.permute import Integers
from etl.shares import SharePlan, split_counts


@dataclass(frozen=True)
class Strata:
    """How examples fall into strata: by class where ``stratified``, by the source's split where ``by_source``."""

    classes: int
    stratified: bool
    by_source: bool

    @classmethod
    def of(cls, config: ShardConfig, classes: int) -> "Strata":
        return cls(classes, config.partition == "stratified", config.fractions is None)

    @property
    def _groups(self) -> int:
        return self.classes if self.stratified else 1

    @property
    def number(self) -> int:
        return self._groups * (len(SPLIT_NAMES) if self.by_source else 1)

    def of_rows(self, rows: pa.Table) -> Integers:
        """Stratum of each row of a part (columns label and split): int64 of shape (rows,)."""
        labels = rows["label"].to_numpy().astype(np.int64)
        group = labels if self.stratified else np.zeros_like(labels)
        if not self.by_source:
            return group
        numbers = {name: number for number, name in enumerate(SPLIT_NAMES)}
        splits = np.array([numbers[split] for split in rows["split"].to_pylist()], dtype=np.int64)
        return splits * self._groups + group

    def of_counts(self, examples: dict[str, list[int]]) -> Integers:
        """Examples of a part in each stratum, from its counts by source split and label: int64 of shape (strata,)."""
        counts = np.zeros(self.number, dtype=np.int64)
        for split, by_label in examples.items():
            first = SPLIT_NAMES.index(split) * self._groups if self.by_source else 0
            own = np.array(by_label if self.stratified else [sum(by_label)], dtype=np.int64)
            counts[first : first + self._groups] += own
        return counts

    def split_counts(self, sizes: Integers, fractions: Fractions | None, splits: Sequence[str]) -> Integers:
        """Examples of each stratum in each of ``splits``: int64 of shape (strata, splits)."""
        if fractions is not None:
            counts = split_counts([int(size) for size in sizes], list(fractions.values()))
            return counts[:, [list(fractions).index(name) for name in splits]]
        counts = np.zeros((self.number, len(splits)), dtype=np.int64)
        for column, name in enumerate(splits):
            first = SPLIT_NAMES.index(name) * self._groups
            counts[first : first + self._groups, column] = sizes[first : first + self._groups]
        return counts


def split_sizes(parts: Sequence[dict[str, Any]], fractions: Fractions | None) -> dict[str, int]:
    """Examples of each split that is not empty, by name.

    Raises DataError where an image has no split of the source's own but should, or nothing is left to train on.
    """
    if fractions is None:
        sizes = dict.fromkeys(SPLIT_NAMES, 0)
        for part in parts:
            for split, by_label in part["examples"].items():
                if split not in sizes:
                    raise DataError(
                        f"images of {part['part']} have no split of the source's own;"
                        " give fractions: --split train=0.8,test=0.2"
                    )
                sizes[split] += sum(by_label)
    else:
        total = sum(part["records"] for part in parts)
        sizes = dict(zip(fractions, map(int, split_counts([total], list(fractions.values()))[0]), strict=True))
    if not sizes.get("train"):
        raise DataError(f"no example is left to train on: {sizes}; give another --split")
    return {name: sizes[name] for name in SPLIT_NAMES if sizes.get(name)}


def resolve_fractions(
    split: Fractions | str | None, parts: Sequence[dict[str, Any]], default: Fractions
) -> Fractions | None:
    """The fractions to split by; None for the source's own splits, which are the default where every image has one."""
    if split is None:
        own = all(name for part in parts for name in part["examples"])
        return None if own else default
    return None if isinstance(split, str) else split  # the one text that a split can be is 'source'


@dataclass(frozen=True)
class Dealing:
    """A plan of shares and, for each part, the rank of its first example within every stratum: int64 (strata,)."""

    strata: Strata
    plan: SharePlan
    splits: tuple[str, ...]
    firsts: tuple[Integers, ...]

    @classmethod
    def of_parts(cls, config: ShardConfig, classes: int, parts: Sequence[dict[str, Any]]) -> "Dealing":
        strata = Strata.of(config, classes)
        sizes = [strata.of_counts(part["examples"]) for part in parts]
        counts = strata.split_counts(np.sum(sizes, axis=0), config.fractions, list(config.slices))
        firsts = tuple(end - size for end, size in zip(np.cumsum(sizes, axis=0), sizes, strict=True))
        plan = SharePlan(counts, tuple(config.slices.values()), config.seed)
        return cls(strata, plan, tuple(config.slices), firsts)

    def deal(self, rows: pa.Table, first: Integers) -> tuple[Integers, Integers]:
        """Split and slice (both by number) of each row of a part whose first ranks are ``first``: int64 (rows,)."""
        return self.plan.deal(self.strata.of_rows(rows), first)

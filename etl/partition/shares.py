"""The arithmetic of exact shares: which split and which slice every example goes to. Pure, and tested as arithmetic.

Splits get their shares of each class by controlled rounding (`round_quotas`). Within a split, examples belong to
*strata* (classes; one stratum for all if the partition is uniform). A seeded permutation takes each example's rank
within its stratum, and the permuted ranks go to slices round-robin, each stratum continuing where the one before it
stopped. So any two slices of a split differ by at most one example, in all and within each stratum, and no list of
examples is ever made.

`permute` computes any part of a permutation of 0 .. n-1 alone. It is a Feistel network over the smallest even number of
bits that holds n, with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Its
round function, and the hash that `permutation` sorts by, is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast
Splittable Pseudorandom Number Generators", OOPSLA 2014). The numbers are the same on every machine and with every
version of numpy, which numpy's own generators do not promise.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from etl.errors import DataError
from etl.partition.config import SPLIT_NAMES

Integers = npt.NDArray[np.int64]
# Examples of a part by split (its number in SPLIT_NAMES; -1: none of its own) and label: int64 (splits + 1, classes).
PartCounts = Integers

_ROUNDS = 8


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
    if not sizes["train"]:
        raise DataError(f"no example is left to train on: {sizes}; give another --split")
    return {name: size for name, size in sizes.items() if size}


@dataclass(frozen=True)
class SlicePlan:
    """How the examples of each split go to its slices, which are numbered through all splits.

    ``sizes`` is int64 of shape (splits, classes), or (splits, 1) if the partition is uniform: the examples of each
    stratum, by the number of its split in SPLIT_NAMES. ``slices`` is the number of slices of each split.
    """

    sizes: Integers
    slices: tuple[int, ...]
    seed: int

    def __post_init__(self) -> None:
        if self.sizes.ndim != 2 or len(self.sizes) != len(self.slices):
            raise ValueError(f"sizes of shape {self.sizes.shape} do not fit {len(self.slices)} splits")
        if (self.sizes < 0).any() or min(self.slices) < 0:
            raise ValueError("sizes and slices cannot be negative")
        if any(total and not number for total, number in zip(self.sizes.sum(axis=1), self.slices, strict=True)):
            raise ValueError("a split with examples needs a slice")

    @classmethod
    def of(cls, total: PartCounts, slices: Mapping[str, int], seed: int, *, is_stratified: bool) -> Self:
        """The plan of ``total`` examples, for so many slices of each split, by name."""
        return cls(_count_strata(total, is_stratified), tuple(slices.get(name, 0) for name in SPLIT_NAMES), seed)

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> Self:
        return cls(np.array(plan["sizes"], dtype=np.int64), tuple(plan["slices"]), plan["seed"])

    def to_json(self) -> dict[str, Any]:
        """As the tasks of a job get it."""
        return {**vars(self), "sizes": self.sizes.tolist()}

    def firsts(self, parts: Iterable[PartCounts]) -> Iterator[dict[int, int]]:
        """For each part, the rank of its first example within each stratum that it has any of, by the stratum's number:
        the examples of that stratum in all parts before.
        """
        before = np.zeros(self.sizes.size, dtype=np.int64)
        for counts in parts:
            own = _count_strata(counts, self.sizes.shape[1] > 1).reshape(-1)
            present = np.flatnonzero(own)
            yield dict(zip(present.tolist(), before[present].tolist(), strict=True))
            before += own

    def assign(self, labels: Integers, splits: Integers, firsts: Mapping[int, int]) -> Integers:
        """The slice of each example of a part: int64 of shape (examples,).

        ``labels`` and ``splits`` (examples,) are the examples' classes and the numbers of their splits in the part's
        order, ``firsts`` what `firsts` gave for the part.
        """
        classes = self.sizes.shape[1]
        strata = splits * classes + (labels if classes > 1 else 0)
        first_slice = np.cumsum(self.slices) - self.slices
        in_earlier_strata = np.cumsum(self.sizes, axis=1) - self.sizes
        slices = np.empty_like(strata)
        for stratum in np.unique(strata).tolist():
            here, (split, label) = np.flatnonzero(strata == stratum), divmod(stratum, classes)
            ranks = firsts[stratum] + np.arange(len(here), dtype=np.int64)
            places = permute(ranks, int(self.sizes[split, label]), "share", self.seed, stratum)
            slices[here] = first_slice[split] + (in_earlier_strata[split, label] + places) % self.slices[split]
        return slices

    def slice_records(self) -> list[int]:
        """Examples of each slice."""
        totals = [(total, number) for total, number in zip(self.sizes.sum(axis=1), self.slices, strict=True) if number]
        records = [total // number + (np.arange(number) < total % number) for total, number in totals]
        return np.concatenate(records).tolist()


def _count_strata(counts: PartCounts, is_stratified: bool) -> Integers:
    """Examples by split, and by class if the partition is stratified: int64 of shape (splits, classes or 1)."""
    return counts[:-1] if is_stratified else counts[:-1].sum(axis=1, keepdims=True)


def permute(values: Integers, n: int, *seed: object) -> Integers:
    """Where the permutation of 0 .. n-1 that belongs to ``seed`` takes each of ``values`` (int64, any shape)."""
    if values.size and (int(values.min()) < 0 or int(values.max()) >= n):
        raise ValueError(f"values must be from 0 to {n - 1}, got {values.min()} to {values.max()}")
    half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = _round_keys(seed)
    result = _encrypt(values.astype(np.uint64), half_bits, keys)
    while (outside := result >= n).any():
        result[outside] = _encrypt(result[outside], half_bits, keys)
    return result.astype(np.int64)


def permutation(n: int, *seed: object) -> Integers:
    """All of 0 .. n-1 in a seeded order, another one than `permute`'s: int64 of shape (n,).

    Sorted by a hash of each, which is several times faster where all are wanted; equal hashes keep their order.
    """
    first, second, *_ = _round_keys(seed)
    hashes = _mix(_mix(np.arange(n, dtype=np.uint64) + first) + second)
    return np.argsort(hashes, kind="stable").astype(np.int64, copy=False)


def _round_keys(seed: tuple[object, ...]) -> npt.NDArray[np.uint64]:
    plain = tuple(int(each) if isinstance(each, np.integer) else each for each in seed)
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _encrypt(values: npt.NDArray[np.uint64], half_bits: int, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    shift, low = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & low
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & low)
    return (left << shift) | right


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

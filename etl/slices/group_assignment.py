"""Splits of images that are grouped by a column (a patient, a video): a group is in one split, and so is a content.

A group that earlier slices knew stays in its split, and so does a known content. New groups that share new contents
form a *unit*, which goes to one split: where most of its known images are, else by a seeded hash of a name.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np

from etl.errors import DataError
from etl.partition.config import SPLIT_NAMES, Fractions
from etl.partition.permutation import Integers
from etl.slices.images import FREE, Images, Splits
from etl.slices.memory import Bools

MOST_NAMED = 10


@dataclass(frozen=True)
class Assigned:
    """The split of each image (by its content) and of each group (int8 by the group's number)."""

    fates: Splits
    of_group: Splits

    def conflicts(self, images: Images) -> Bools:
        """Which live images have a content that is in another split than their group: bool of shape (images,)."""
        torn = images.live.copy()
        torn[torn] = self.of_group[images.groups[torn]] != self.fates[torn]
        return torn

    def by_name(self, images: Images) -> dict[str, int]:
        """The number of the split of each group."""
        return {name: int(self.of_group[number]) for name, number in images.group_names.items()}


class GroupConflict(DataError):
    """Images for which no split is right: their content is known in another split than their group.

    ``keys`` are all of them.
    """

    def __init__(self, message: str, keys: Sequence[str]) -> None:
        super().__init__(message)
        self.keys = keys

    @classmethod
    def of(cls, images: Images, assigned: Assigned, numbers: Sequence[int], column: str) -> Self:
        names = list(images.group_names)
        named = [
            f"{images.key(number)} ({SPLIT_NAMES[assigned.fates[number]]}, {column} {names[images.groups[number]]!r} in"
            f" {SPLIT_NAMES[assigned.of_group[images.groups[number]]]})"
            for number in numbers[:MOST_NAMED]
        ]
        more = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
        keys = [images.key(number) for number in numbers]
        return cls(
            f"{len(numbers)} images were in another split than their {column} is: {', '.join(named)}{more};"
            " correct the column, or leave them out by --remove",
            keys,
        )


def assign_by_group(images: Images, known: dict[str, int], fractions: Fractions, seed: int) -> Assigned:
    """Splits of all live images and of their groups; ``known`` are the splits of groups that earlier slices had."""
    of_group = np.full(len(images.group_names), FREE, dtype=np.int8)
    for name, number in images.group_names.items():
        of_group[number] = known.get(name, FREE)
    live = np.flatnonzero(images.live)
    cluster, group = images.clusters[live], images.groups[live]
    shared = _shared_clusters(cluster, group, images.by_content[live])
    units = _units(of_group, shared)
    votes = _Votes(len(of_group))
    votes.of_contents(units[group], images.by_content[live], images.by_key[live])
    for groups in shared.values():
        votes.of_neighbours(units, of_group, groups)
    free = np.flatnonzero(of_group == FREE).tolist()
    names = list(images.group_names)
    name_of = dict[int, str]()  # of a unit: the first of its groups, by name
    for number in free:
        name_of[units[number]] = min(name_of.get(units[number], names[number]), names[number])
    for number in free:
        won = votes.winner(units[number])
        of_group[number] = (
            won if won != FREE else SPLIT_NAMES.index(split_of_group(name_of[units[number]], fractions, seed))
        )
    of_shared = np.full(int(cluster.max(initial=-1)) + 1, FREE, dtype=np.int8)
    for content, groups in shared.items():
        of_shared[content] = _majority([int(of_group[each]) for each in groups])
    by_group = np.where(of_shared[cluster] != FREE, of_shared[cluster], of_group[group])
    fates = np.full(len(images.live), FREE, dtype=np.int8)
    fates[live] = np.where(images.by_content[live] != FREE, images.by_content[live], by_group)
    return Assigned(fates, of_group)


def _shared_clusters(cluster: Integers, group: Integers, by_content: Splits) -> dict[int, list[int]]:
    """The groups of each unknown content that several have."""
    unknown = by_content == FREE
    pairs = np.unique(np.stack((cluster[unknown], group[unknown]), axis=1), axis=0)
    contents, counts = np.unique(pairs[:, 0], return_counts=True)
    several = pairs[np.isin(pairs[:, 0], contents[counts > 1])]
    shared: dict[int, list[int]] = {}
    for content, number in several.tolist():
        shared.setdefault(content, []).append(number)
    return shared


def _units(of_group: Splits, shared: dict[int, list[int]]) -> Integers:
    """The unit of each group, the lowest number in it: groups without a split that share contents are one unit."""
    units = np.arange(len(of_group), dtype=np.int64)

    def find(number: int) -> int:
        while units[number] != number:
            units[number] = units[units[number]]
            number = int(units[number])
        return number

    for groups in shared.values():
        free = [each for each in groups if of_group[each] == FREE]
        for each in free[1:]:
            one, other = sorted((find(free[0]), find(each)))
            units[other] = one
    return np.array([find(number) for number in range(len(units))], dtype=np.int64)


class _Votes:
    """Votes for the split of each unit, by the splits of its contents and neighbours, else by those of its keys."""

    def __init__(self, units: int) -> None:
        self._strong = np.zeros((units, len(SPLIT_NAMES)), dtype=np.int64)
        self._weak = np.zeros_like(self._strong)

    def of_contents(self, units: Integers, by_content: Splits, by_key: Splits) -> None:
        """Each image votes for its unit, if it is known."""
        for votes, splits in ((self._strong, by_content), (self._weak, by_key)):
            known = splits >= 0
            np.add.at(votes, (units[known], splits[known]), 1)

    def of_neighbours(self, units: Integers, of_group: Splits, groups: Sequence[int]) -> None:
        """Groups with a split vote for the units of those without that share a content with them."""
        for unit in {int(units[each]) for each in groups if of_group[each] == FREE}:
            for each in groups:
                if of_group[each] != FREE:
                    self._strong[unit, of_group[each]] += 1

    def winner(self, unit: int) -> int:
        """The split with most votes, `FREE` where there is none."""
        for votes in (self._strong[unit], self._weak[unit]):
            if votes.any():
                return int(votes.argmax())
        return FREE


def _majority(splits: Sequence[int]) -> int:
    return max(sorted(set(splits)), key=splits.count)


def split_of_group(group: str, fractions: Fractions, seed: int) -> str:
    """Where a group goes: 64 bits of BLAKE2b over seed and name, as a number from 0 to 1, against the fractions."""
    digest = hashlib.blake2b(f"{seed}\0{group}".encode(), digest_size=8).digest()
    point, reached = Fraction(int.from_bytes(digest, "big"), 1 << 64), Fraction(0)
    for name, share in fractions.items():
        reached += share
        if point < reached:
            return name
    return next(reversed(fractions))

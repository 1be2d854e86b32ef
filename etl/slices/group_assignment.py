"""Splits of images that are grouped by a column (a patient, a video): a group is in one split, and so is a content.

A group that earlier slices knew stays in its split, and so does a known content. New groups that share new contents
form a *unit*, which goes to one split: where most of its known images are, else by a seeded hash of a name.
"""

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np

from etl.errors import DataError
from etl.partition.config import SPLIT_NAMES, Fractions
from etl.partition.shares import Integers
from etl.slices.images import NO_SPLIT, Images, Splits
from etl.values import MAX_NAMED, name_some


class GroupConflict(DataError):
    """Images for which no split is right: their content was in another split than their group.

    ``keys`` are all of them.
    """

    def __init__(self, message: str, keys: Sequence[str]) -> None:
        super().__init__(message)
        self.keys = keys


def conflict_of(images: Images, splits: Splits, of_group: Splits, numbers: Integers, column: str) -> GroupConflict:
    """The conflict of the images at these places; ``column`` is the one that they are grouped by.

    ``splits`` and ``of_group`` are those of `assign_by_group`.
    """
    keys = images.keys.take(numbers).to_pylist()
    named = [
        f"{key} ({SPLIT_NAMES[splits[number]]}, {column} {images.group_names[group]!r} in"
        f" {SPLIT_NAMES[of_group[group]]})"
        for key, number, group in zip(keys[:MAX_NAMED], numbers, images.groups[numbers].tolist(), strict=False)
    ]
    some = name_some(named, len(numbers))
    return GroupConflict(
        f"{len(numbers)} images were in another split than their {column} is: {some}; correct the column, or leave them"
        " out by --remove",
        keys,
    )


def assign_by_group(images: Images, known: dict[str, int], fractions: Fractions, seed: int) -> tuple[Splits, Splits]:
    """The split of each live image (by its content), and of each group (int8 by the group's number).

    ``known`` are the splits of groups that earlier slices had.
    """
    names = images.group_names
    of_group = np.array([known.get(name, NO_SPLIT) for name in names], dtype=np.int8)
    live = np.flatnonzero(images.live)
    cluster, group = images.clusters[live], images.groups[live]
    shared = _shared_clusters(cluster, group, images.by_content[live])
    units = _units(of_group, shared)
    by_content, by_key = images.by_content[live], images.by_key[live]
    # Votes for the split of each unit. strong: of its known contents, and of groups with a split that share a content
    # with it; weak: of its known keys, used only without strong ones.
    strong, weak = (np.zeros((len(of_group), len(SPLIT_NAMES)), dtype=np.int64) for _ in range(2))
    for votes, known_splits in ((strong, by_content), (weak, by_key)):
        is_known = known_splits >= 0
        np.add.at(votes, (units[group[is_known]], known_splits[is_known]), 1)
    for groups in shared.values():
        neighbours = [int(of_group[each]) for each in groups if of_group[each] != NO_SPLIT]
        for unit in {int(units[each]) for each in groups if of_group[each] == NO_SPLIT}:
            np.add.at(strong, (unit, neighbours), 1)
    free = np.flatnonzero(of_group == NO_SPLIT).tolist()
    name_of = dict[int, str]()  # of a unit: the first of its groups, by name
    for number in free:
        name_of[units[number]] = min(name_of.get(units[number], names[number]), names[number])
    for number in free:
        unit = units[number]
        counts = strong[unit] if strong[unit].any() else weak[unit]
        if counts.any():
            of_group[number] = counts.argmax()
        else:
            of_group[number] = SPLIT_NAMES.index(split_of_group(name_of[unit], fractions, seed))
    of_shared = np.full(int(cluster.max(initial=-1)) + 1, NO_SPLIT, dtype=np.int8)
    for content, groups in shared.items():
        of_shared[content] = np.bincount(of_group[groups]).argmax()
    by_group = np.where(of_shared[cluster] != NO_SPLIT, of_shared[cluster], of_group[group])
    splits = np.full(len(images.live), NO_SPLIT, dtype=np.int8)
    splits[live] = np.where(by_content != NO_SPLIT, by_content, by_group)
    return splits, of_group


def _shared_clusters(cluster: Integers, group: Integers, by_content: Splits) -> dict[int, list[int]]:
    """The groups of each unknown content that several have."""
    unknown = by_content == NO_SPLIT
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
        free = [each for each in groups if of_group[each] == NO_SPLIT]
        for each in free[1:]:
            one, other = sorted((find(free[0]), find(each)))
            units[other] = one
    return np.array([find(number) for number in range(len(units))], dtype=np.int64)


def split_of_group(group: str, fractions: Fractions, seed: int) -> str:
    """Where a group goes: 64 bits of BLAKE2b over seed and name, as a number from 0 to 1, against the fractions."""
    digest = hashlib.blake2b(f"{seed}\0{group}".encode(), digest_size=8).digest()
    point = Fraction(int.from_bytes(digest), 1 << 64)
    return next(name for name, end in zip(fractions, accumulate(fractions.values()), strict=True) if point < end)

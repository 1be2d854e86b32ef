"""What becomes of each image where counts alone do not say: its split, or that it is left out.

The first rule that applies decides: the split that its content had in earlier slices; that of its group; that of its
key; the source's own, or the fractions that were asked for. Images of the same content go to one split, unless the
source itself puts them into several. All is decided in one process, by 250 to 550 bytes of memory per image; an image's
*fate* is the number of its split in SPLIT_NAMES, or `LEFT_OUT`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import DataError
from etl.partition.config import SPLIT_NAMES, Fractions, ShardConfig, resolve_fractions
from etl.partition.permutation import Integers, permute
from etl.partition.shares import top_up
from etl.partition.strata import PartCounts
from etl.slices.group_assignment import GroupConflict, assign_by_group
from etl.slices.images import FREE, LEFT_OUT, Images, Rules, Splits, gather
from etl.slices.memory import Bools

MOST_NAMED = 10


@dataclass(frozen=True)
class Known:
    """How the images that are dealt were known before, counted.

    ``kept``: by content; ``moved``: of those, under a new key; ``changed``: by key alone; ``new``: not at all.
    ``disagreeing`` are images whose content and key (or group and key) were in different splits; the first of them are
    ``named``.
    """

    kept: int = 0
    moved: int = 0
    changed: int = 0
    new: int = 0
    disagreeing: int = 0
    named: tuple[str, ...] = ()

    def to_json(self) -> dict[str, int]:
        """As the manifest has it."""
        return {name: getattr(self, name) for name in ("kept", "moved", "changed", "new", "disagreeing")}


@dataclass
class Decided:
    """The fate and the label of every image, part by part, and how many live ones were left out, by cause.

    ``dealt`` (bool, by the number of what is remembered) are the keys that are dealt again, ``dealt_contents`` (uint8,
    bit n for SPLIT_NAMES[n]) the splits in which contents are; ``groups`` the splits of all groups, those remembered
    too; ``removed`` the keys that a list removed.
    """

    fates: list[Splits]
    labels: list[Integers]
    classes: int
    left_out: dict[str, int]
    dealt: Bools
    dealt_contents: npt.NDArray[np.uint8]
    groups: Mapping[str, int] = field(default_factory=dict)
    known: Known = field(default_factory=Known)
    removed: frozenset[str] = frozenset()

    def counts(self) -> Iterator[PartCounts]:
        """Examples of each part, by split and label."""
        for fates, labels in zip(self.fates, self.labels, strict=True):
            there = fates >= 0
            cells = fates[there].astype(np.int64) * self.classes + labels[there]
            counted = np.bincount(cells, minlength=(len(SPLIT_NAMES) + 1) * self.classes)
            yield counted.reshape(len(SPLIT_NAMES) + 1, self.classes)

    def tables(self) -> Iterator[pa.Table]:
        """The fates as tables of `etl.formats.schemas.FATES`, one for each part."""
        return (pa.table({"fate": pa.array(each, pa.int8())}) for each in self.fates)


def decide(rules: Rules, parts: Iterable[tuple[pa.Table, Bools]]) -> Decided:
    """The fates of the images of ``parts``: for each its rows (columns `COLUMNS`) and which of them are live.

    Raises DataError where an image has no split or no group though one is needed; UsageError where none of the images
    is remembered, or no image has a group; GroupConflict where no split is right for an image.
    """
    images = gather(rules, parts)
    groups = dict(rules.memory.groups) if rules.memory else {}
    if rules.config.group_by is not None:
        fates, groups, doubles = _by_group(rules, images, groups)
    else:
        fates, doubles = (_by_source if rules.config.split is None else _by_share)(rules, images)
    fates[~images.live | doubles] = LEFT_OUT
    ends = np.cumsum(images.sizes)[:-1]
    there = fates >= 0
    return Decided(
        np.split(fates, ends),
        np.split(images.labels, ends),
        rules.classes,
        {"removed_keys": len(images.removed), "duplicates": int(doubles.sum())},
        _dealt_keys(rules, images.keys[there]),
        _dealt_contents(rules, images.contents[there], fates[there]),
        groups,
        _count_known(images, fates),
        frozenset(images.removed),
    )


def _dealt_keys(rules: Rules, numbers: Integers) -> Bools:
    dealt = np.zeros(len(rules.memory.keys) if rules.memory else 0, dtype=bool)
    dealt[numbers[numbers >= 0]] = True
    return dealt


def _dealt_contents(rules: Rules, numbers: Integers, fates: Splits) -> npt.NDArray[np.uint8]:
    dealt = np.zeros(len(rules.memory.contents) if rules.memory else 0, dtype=np.uint8)
    known = numbers >= 0
    np.bitwise_or.at(dealt, numbers[known], np.left_shift(1, fates[known]).astype(np.uint8))
    return dealt


def _count_known(images: Images, fates: Splits) -> Known:
    there = fates >= 0
    by_content, by_key = there & (images.contents >= 0), there & (images.by_key >= 0)
    disagreeing = by_key & (images.by_key != fates)
    return Known(
        int(by_content.sum()),
        int((by_content & (images.keys < 0)).sum()),
        int((by_key & ~by_content).sum()),
        int((there & ~by_key & ~by_content).sum()),
        int(disagreeing.sum()),
        tuple(
            f"{images.key(number)} ({SPLIT_NAMES[images.by_key[number]]} by its key, {SPLIT_NAMES[fates[number]]} now)"
            for number in np.flatnonzero(disagreeing)[:MOST_NAMED].tolist()
        ),
    )


def _find_doubles(rules: Rules, images: Images, fates: Splits, last: Bools | None = None) -> Bools:
    """Which live images have the content of another that is dealt; all False unless duplicates are dropped.

    Of each content one whose key is known in its split is dealt, else one that is known by its key, else the first;
    those of ``last`` come behind all others.
    """
    doubles = np.zeros(len(images.live), dtype=bool)
    if rules.config.drop_duplicates:
        there = np.flatnonzero(images.live)
        behind = last[there] if last is not None else np.zeros(len(there), dtype=bool)
        elsewhere = (images.by_key != fates)[there] | (images.by_key[there] == FREE)
        order = there[np.lexsort((there, images.keys[there] < 0, elsewhere, behind, images.clusters[there]))]
        doubles[order[1:][images.clusters[order[1:]] == images.clusters[order[:-1]]]] = True
    return doubles


def _by_source(rules: Rules, images: Images) -> tuple[Splits, Bools]:
    """Each image where its content is known, else its key, else where the source has it; and which are doubles."""
    fates = np.where(images.by_content >= 0, images.by_content, images.by_key)
    fates = np.where(fates >= 0, fates, images.own)
    doubles = _find_doubles(rules, images, fates)
    if without := int((images.live & ~doubles & (fates == FREE)).sum()):
        raise DataError(
            f"{without} images have no split of the source's own; give fractions: --split train=0.8,test=0.2"
        )
    return fates, doubles


def _by_share(rules: Rules, images: Images) -> tuple[Splits, Bools]:
    """Known contents and keys stay; what is free is dealt by fractions, all images of a content to one split.

    Also gives which images are doubles.
    """
    votes = np.zeros((int(images.clusters.max(initial=-1)) + 1, len(SPLIT_NAMES)), dtype=np.int64)
    by_key = images.live & (images.by_key >= 0)
    np.add.at(votes, (images.clusters[by_key], images.by_key[by_key]), 1)
    by_cluster = np.where(votes.any(axis=1), votes.argmax(axis=1), FREE).astype(np.int8)
    fates = np.where(images.by_content >= 0, images.by_content, by_cluster[images.clusters])
    doubles = _find_doubles(rules, images, fates)
    _deal(rules, images, images.live & ~doubles, fates)
    return fates, doubles


def _deal(rules: Rules, images: Images, there: Bools, fates: Splits) -> None:
    """Set the free ones of ``fates`` so that each split comes as near as can be to its share of all ``there``.

    Contents with several images come first, each as a whole; images that are alone then fill up what is lacking.
    """
    fractions = fractions_of(rules.config, int(there.sum()))
    names = [SPLIT_NAMES.index(name) for name in fractions]
    stratified = rules.config.partition == "stratified"
    number = rules.classes if stratified else 1
    strata = images.labels if stratified else np.zeros_like(images.labels)
    known = [np.bincount(strata[there & (fates == name)], minlength=number) for name in names]
    free = np.flatnonzero(there & (fates == FREE))
    _, firsts, own, sizes = np.unique(images.clusters[free], return_index=True, return_inverse=True, return_counts=True)
    copies = _Copies(free[firsts], own, sizes)
    missing = _lacking(known, np.bincount(strata[free], minlength=number), list(fractions.values()))
    dealt = np.array(names, dtype=np.int8)[copies.deal(strata, missing, rules.config.seed)]
    fates[free[copies.several]] = dealt[own[copies.several]]
    known = [np.bincount(strata[there & (fates == name)], minlength=number) for name in names]
    alone = free[~copies.several]
    in_stratum = np.bincount(strata[alone], minlength=number)
    counts = top_up(np.stack(known, axis=1), in_stratum.tolist(), list(fractions.values()))
    by_stratum = alone[np.argsort(strata[alone], kind="stable")]
    for stratum, here in enumerate(np.split(by_stratum, np.cumsum(in_stratum)[:-1])):
        ranks = permute(np.arange(len(here), dtype=np.int64), len(here), "split", rules.config.seed, stratum)
        fates[here] = np.array(names)[np.searchsorted(np.cumsum(counts[stratum]), ranks, side="right")]


def _lacking(known: list[Integers], free: Integers, fractions: Sequence[Fraction]) -> npt.NDArray[np.float64]:
    """Which part of the free images of each stratum each split lacks: (strata, splits), rows adding up to 1."""
    have = np.stack(known, axis=1)
    whole = (have.sum(axis=1) + free)[:, None]
    wanted = np.maximum(whole * np.array([float(each) for each in fractions]) - have, 0)
    return wanted / np.maximum(wanted.sum(axis=1, keepdims=True), 1e-9)


@dataclass(frozen=True)
class _Copies:
    """Contents of free images: the first image of each, the content of each image, and how many images it has."""

    firsts: Integers
    own: Integers
    sizes: Integers

    @property
    def several(self) -> Bools:
        """Which of the free images are not alone with their content."""
        return self.sizes[self.own] > 1

    def deal(self, strata: Integers, lacking: npt.NDArray[np.float64], seed: int) -> Integers:
        """The split of each content that has several images (by its place in ``lacking``; 0 for all others).

        Each goes as a whole to the split that lacks most by then; what one stratum leaves over counts in the next, so
        that totals stay within the largest number of copies.
        """
        dealt = np.zeros(len(self.sizes), dtype=np.int64)
        here = np.flatnonzero(self.sizes > 1)
        ranks = permute(np.arange(len(here), dtype=np.int64), len(here), "copies", seed, 0)
        in_turn = here[np.lexsort((ranks, strata[self.firsts[here]]))]
        owed = [0.0] * lacking.shape[1]
        for content in in_turn.tolist():
            size = int(self.sizes[content])
            for split, part in enumerate(lacking[strata[self.firsts[content]]].tolist()):
                owed[split] += size * part
            dealt[content] = most = owed.index(max(owed))
            owed[most] -= size
        return dealt


def _by_group(rules: Rules, images: Images, groups: dict[str, int]) -> tuple[Splits, dict[str, int], Bools]:
    """Each image where its group is. Also gives the splits of all groups, and which images are doubles."""
    total = len(np.unique(images.clusters[images.live])) if rules.config.drop_duplicates else int(images.live.sum())
    assigned = assign_by_group(images, groups, fractions_of(rules.config, total), rules.config.seed)
    torn = assigned.conflicts(images)
    doubles = _find_doubles(rules, images, assigned.fates, torn)
    if (left := torn & ~doubles).any():
        with_copies = np.flatnonzero(torn & np.isin(images.clusters, images.clusters[left]))
        raise GroupConflict.of(images, assigned, with_copies.tolist(), str(rules.config.group_by))
    return assigned.fates, groups | assigned.by_name(images), doubles


def fractions_of(config: ShardConfig, total: int) -> Fractions:
    """The fractions that are asked for, of so many images."""
    assert config.split is not None
    return resolve_fractions(config.split, total)

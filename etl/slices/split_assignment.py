"""What becomes of each image where counts alone do not say: its split, or that it is left out.

The first rule that applies decides: the split that its content had in earlier slices; that of its group; that of its
key; the source's own, or the fractions that were asked for. Images of the same content go to one split, unless the
source itself puts them into several. All is decided in one process, by 250 to 550 bytes of memory per image; an image's
*fate* is the number of its split in SPLIT_NAMES, or `LEFT_OUT`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
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

    ``kept``: by content; ``moved``: of those, under another key; ``changed``: by key alone; ``new``: not at all.
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

    ``dealt`` and ``dealt_contents`` (bool, by the number of what is remembered) are the keys and contents that are
    dealt again; ``groups`` the splits of all groups, those remembered too; ``removed`` the keys that a list removed.
    """

    fates: list[Splits]
    labels: list[Integers]
    classes: int
    left_out: dict[str, int]
    dealt: Bools
    dealt_contents: Bools
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
        doubles = _find_doubles(rules, images)
        decide_free = _by_source if rules.config.split is None else _by_share
        fates = decide_free(rules, images, images.live & ~doubles)
    fates[~images.live | doubles] = LEFT_OUT
    ends = np.cumsum(images.sizes)[:-1]
    there = fates >= 0
    return Decided(
        np.split(fates, ends),
        np.split(images.labels, ends),
        rules.classes,
        {"removed_keys": len(images.removed), "duplicates": int(doubles.sum())},
        _marked(len(rules.memory.keys) if rules.memory else 0, images.keys[there]),
        _marked(len(rules.memory.contents) if rules.memory else 0, images.contents[there]),
        groups,
        _count_known(images, fates),
        frozenset(images.removed),
    )


def _marked(length: int, numbers: Integers) -> Bools:
    marked = np.zeros(length, dtype=bool)
    marked[numbers[numbers >= 0]] = True
    return marked


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


def _find_doubles(rules: Rules, images: Images, last: Bools | None = None) -> Bools:
    """Which live images have the content of another that is dealt; all False unless duplicates are dropped.

    Of each content one that is known by its key is dealt, else the first; those of ``last`` come behind all others.
    """
    doubles = np.zeros(len(images.live), dtype=bool)
    if rules.config.drop_duplicates:
        there = np.flatnonzero(images.live)
        behind = last[there] if last is not None else np.zeros(len(there), dtype=bool)
        order = there[np.lexsort((there, images.keys[there] < 0, behind, images.clusters[there]))]
        doubles[order[1:][images.clusters[order[1:]] == images.clusters[order[:-1]]]] = True
    return doubles


def _by_source(rules: Rules, images: Images, there: Bools) -> Splits:
    """Each image where its content is known, else its key, else where the source has it."""
    del rules
    fates = np.where(images.by_content >= 0, images.by_content, images.by_key)
    fates = np.where(fates >= 0, fates, images.own)
    if without := int((there & (fates == FREE)).sum()):
        raise DataError(
            f"{without} images have no split of the source's own; give fractions: --split train=0.8,test=0.2"
        )
    return fates


def _by_share(rules: Rules, images: Images, there: Bools) -> Splits:
    """Known contents and keys stay; what is free is dealt by fractions, all images of a content to one split."""
    votes = np.zeros((int(images.clusters.max(initial=-1)) + 1, len(SPLIT_NAMES)), dtype=np.int64)
    by_key = images.live & (images.by_key >= 0)
    np.add.at(votes, (images.clusters[by_key], images.by_key[by_key]), 1)
    by_cluster = np.where(votes.any(axis=1), votes.argmax(axis=1), FREE).astype(np.int8)
    fates = np.where(images.by_content >= 0, images.by_content, by_cluster[images.clusters])
    _deal(rules, images, there, fates)
    return fates


def _deal(rules: Rules, images: Images, there: Bools, fates: Splits) -> None:
    """Set the free ones of ``fates`` so that each split comes as near as can be to its share of all ``there``."""
    fractions = fractions_of(rules.config, int(there.sum()))
    names = [SPLIT_NAMES.index(name) for name in fractions]
    stratified = rules.config.partition == "stratified"
    number = rules.classes if stratified else 1
    strata = images.labels if stratified else np.zeros_like(images.labels)
    known = [np.bincount(strata[there & (fates == name)], minlength=number) for name in names]
    free = np.flatnonzero(there & (fates == FREE))
    # a content is dealt as a whole, in the stratum of its first image
    _, firsts, own, sizes = np.unique(images.clusters[free], return_index=True, return_inverse=True, return_counts=True)
    stratum_of = strata[free[firsts]]
    in_stratum = np.bincount(stratum_of, weights=sizes, minlength=number).astype(np.int64)
    counts = top_up(np.stack(known, axis=1), in_stratum.tolist(), list(fractions.values()))
    dealt = np.empty(len(sizes), dtype=np.int8)
    order = np.lexsort((firsts, stratum_of))
    bounds = np.cumsum(np.bincount(stratum_of, minlength=number))[:-1]
    for stratum, here in enumerate(np.split(order, bounds)):
        ranks = permute(np.arange(len(here), dtype=np.int64), len(here), "split", rules.config.seed, stratum)
        in_turn = here[np.argsort(ranks)]
        starts = np.cumsum(sizes[in_turn]) - sizes[in_turn]
        dealt[in_turn] = np.array(names)[np.searchsorted(np.cumsum(counts[stratum]), starts, side="right")]
    fates[free] = dealt[own]


def _by_group(rules: Rules, images: Images, groups: dict[str, int]) -> tuple[Splits, dict[str, int], Bools]:
    """Each image where its group is. Also gives the splits of all groups, and which images are doubles."""
    total = len(np.unique(images.clusters[images.live])) if rules.config.drop_duplicates else int(images.live.sum())
    assigned = assign_by_group(images, groups, fractions_of(rules.config, total), rules.config.seed)
    torn = assigned.conflicts(images)
    doubles = _find_doubles(rules, images, torn)
    if (left := torn & ~doubles).any():
        with_copies = np.flatnonzero(torn & np.isin(images.clusters, images.clusters[left]))
        raise GroupConflict.of(images, assigned, with_copies.tolist(), str(rules.config.group_by))
    return assigned.fates, groups | assigned.by_name(images), doubles


def fractions_of(config: ShardConfig, total: int) -> Fractions:
    """The fractions that are asked for, of so many images."""
    assert config.split is not None
    return resolve_fractions(config.split, total)

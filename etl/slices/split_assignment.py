"""The split of each image, or that it is left out, if counts alone do not decide it.

The first rule that applies decides: the split that its content had in earlier slices; that of its group; that of its
key; the source's own, or the fractions that were asked for. Images of the same content go to one split, unless the
source itself puts them into several. All splits are assigned in one process, with 230 to 540 bytes of memory per image.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.partition.config import SOURCE_SPLIT, SPLIT_NAMES
from etl.partition.shares import Integers, PartCounts, permute, top_up
from etl.slices.group_assignment import assign_by_group, conflict_of
from etl.slices.history import Bools
from etl.slices.images import LEFT_OUT, NO_SPLIT, Images, Rules, Splits, gather


@dataclass
class SplitAssignment:
    """The split and the label of every image, part by part, and how many live ones were left out, by cause.

    A split may be `LEFT_OUT`, or `NO_SPLIT` if the source gave an image none.

    ``known`` counts how examples were known before (`_count_known`). ``retired`` are the tables that
    `SplitHistory.retired_tables` gives; ``removed`` the keys that a list removed.
    """

    splits: list[Splits]
    labels: list[Integers]
    classes: int
    left_out: dict[str, int]
    retired: Mapping[str, pa.Table]
    known: dict[str, int]
    removed: frozenset[str]

    def counts(self) -> Iterator[PartCounts]:
        """Examples of each part, by split and label."""
        rows = len(SPLIT_NAMES) + 1  # the last one for `NO_SPLIT`
        for splits, labels in zip(self.splits, self.labels, strict=True):
            there = splits != LEFT_OUT
            cells = splits[there].astype(np.int64) % rows * self.classes + labels[there]
            yield np.bincount(cells, minlength=rows * self.classes).reshape(rows, self.classes)

    def tables(self) -> Iterator[pa.Table]:
        """The splits as tables of `etl.formats.schemas.ASSIGNMENTS`, one for each part."""
        return (pa.table({"split": pa.array(each, pa.int8())}) for each in self.splits)


def assign_splits(rules: Rules, parts: Iterable[tuple[pa.Table, Bools]]) -> SplitAssignment:
    """The splits of the images of ``parts``: for each its rows (`IMAGE_COLUMNS`) and which of them are live.

    Raises DataError if an image has no group though one is needed; UsageError if the history has none of the images, or
    no image has a group; GroupConflict if no split is right for an image.
    """
    images, groups = gather(rules, parts), dict(rules.history.groups)
    if rules.config.group_by is not None:
        splits, groups, is_duplicate = _by_group(rules, images, groups)
    else:
        splits, is_duplicate = (_by_source if rules.config.split == SOURCE_SPLIT else _by_share)(rules, images)
    splits[~images.live | is_duplicate] = LEFT_OUT
    there = splits >= 0
    examples = (images.key_rows[there], images.content_rows[there], splits[there])
    ends = np.cumsum(images.sizes)[:-1]
    return SplitAssignment(
        np.split(splits, ends),
        np.split(images.labels, ends),
        rules.classes,
        {"removed_keys": len(images.removed), "duplicates": int(is_duplicate.sum())},
        rules.history.retired_tables(*examples, removed=rules.removed, groups=groups),
        _count_known(images, splits),
        frozenset(images.removed),
    )


def _count_known(images: Images, splits: Splits) -> dict[str, int]:
    """How many examples were known before, by how.

    ``kept``: by content; ``moved``: of those, under a new key; ``changed``: by key alone; ``new``: not at all.
    ``disagreeing`` are images whose content and key (or group and key) were in different splits.
    """
    there = splits >= 0
    by_content, by_key = there & (images.content_rows >= 0), there & (images.by_key >= 0)
    return {
        "kept": int(by_content.sum()),
        "moved": int((by_content & (images.key_rows < 0)).sum()),
        "changed": int((by_key & ~by_content).sum()),
        "new": int((there & ~by_key & ~by_content).sum()),
        "disagreeing": int((by_key & (images.by_key != splits)).sum()),
    }


def _find_duplicates(rules: Rules, images: Images, splits: Splits, last: Bools | None = None) -> Bools:
    """Which live images have the content of another that stays; all False unless duplicates are dropped.

    Of each content one whose key was in its split stays, else one whose key was in another, else the first; those of
    ``last`` come after all others.
    """
    is_duplicate = np.zeros(len(images.live), dtype=bool)
    if rules.config.drop_duplicates:
        there = np.flatnonzero(images.live)
        behind = last[there] if last is not None else np.zeros(len(there), dtype=bool)
        elsewhere = (images.by_key != splits)[there] | (images.by_key[there] == NO_SPLIT)
        order = there[np.lexsort((there, images.key_rows[there] < 0, elsewhere, behind, images.clusters[there]))]
        is_duplicate[order[1:][images.clusters[order[1:]] == images.clusters[order[:-1]]]] = True
    return is_duplicate


def _by_source(rules: Rules, images: Images) -> tuple[Splits, Bools]:
    """Each image where its content was, else its key, else where the source has it; and which are duplicates."""
    splits = np.where(images.by_content >= 0, images.by_content, images.by_key)
    splits = np.where(splits >= 0, splits, images.own)
    return splits, _find_duplicates(rules, images, splits)


def _by_share(rules: Rules, images: Images) -> tuple[Splits, Bools]:
    """Known contents and keys stay; what is free goes by fractions, a content as a whole; and which are duplicates."""
    votes = np.zeros((int(images.clusters.max(initial=-1)) + 1, len(SPLIT_NAMES)), dtype=np.int64)
    by_key = images.live & (images.by_key >= 0)
    np.add.at(votes, (images.clusters[by_key], images.by_key[by_key]), 1)
    by_cluster = np.where(votes.any(axis=1), votes.argmax(axis=1), NO_SPLIT).astype(np.int8)
    splits = np.where(images.by_content >= 0, images.by_content, by_cluster[images.clusters])
    is_duplicate = _find_duplicates(rules, images, splits)
    _fill_up(rules, images, images.live & ~is_duplicate, splits)
    return splits, is_duplicate


def _fill_up(rules: Rules, images: Images, there: Bools, splits: Splits) -> None:
    """Set the free ones of ``splits`` so that each split comes as near as can be to its share of all ``there``.

    Contents with several images come first, each as a whole; images that are alone then fill up what is lacking.
    """
    fractions = rules.config.fractions(int(there.sum()))
    names = [SPLIT_NAMES.index(name) for name in fractions]
    stratified = rules.config.is_stratified
    number = rules.classes if stratified else 1
    strata = images.labels if stratified else np.zeros_like(images.labels)
    known = [np.bincount(strata[there & (splits == name)], minlength=number) for name in names]
    free = np.flatnonzero(there & (splits == NO_SPLIT))
    _, firsts, own, sizes = np.unique(images.clusters[free], return_index=True, return_inverse=True, return_counts=True)
    several = sizes[own] > 1  # which are not alone with their content
    lacking = _lacking(known, np.bincount(strata[free], minlength=number), list(fractions.values()))
    of_content = _assign_copies(sizes, strata[free[firsts]], lacking, rules.config.seed)
    splits[free[several]] = np.array(names, dtype=np.int8)[of_content[own[several]]]
    known = [np.bincount(strata[there & (splits == name)], minlength=number) for name in names]
    alone = free[~several]
    in_stratum = np.bincount(strata[alone], minlength=number)
    counts = top_up(np.stack(known, axis=1), in_stratum.tolist(), list(fractions.values()))
    by_stratum = alone[np.argsort(strata[alone], kind="stable")]
    for stratum, here in enumerate(np.split(by_stratum, np.cumsum(in_stratum)[:-1])):
        ranks = permute(np.arange(len(here), dtype=np.int64), len(here), "split", rules.config.seed, stratum)
        splits[here] = np.array(names)[np.searchsorted(np.cumsum(counts[stratum]), ranks, side="right")]


def _lacking(known: list[Integers], free: Integers, fractions: Sequence[Fraction]) -> npt.NDArray[np.float64]:
    """Which part of the free images of each stratum each split lacks: (strata, splits), rows adding up to 1."""
    have = np.stack(known, axis=1)
    whole = (have.sum(axis=1) + free)[:, None]
    wanted = np.maximum(whole * np.array([float(each) for each in fractions]) - have, 0)
    return wanted / np.maximum(wanted.sum(axis=1, keepdims=True), 1e-9)


def _assign_copies(sizes: Integers, strata: Integers, lacking: npt.NDArray[np.float64], seed: int) -> Integers:
    """The split of each content with several images (by its place in ``lacking``; 0 for all others).

    ``sizes`` and ``strata`` are those of the contents. Each goes as a whole to the split that lacks most by then; what
    one stratum leaves over counts in the next, so that totals stay within the largest number of copies.
    """
    splits = np.zeros(len(sizes), dtype=np.int64)
    here = np.flatnonzero(sizes > 1)
    ranks = permute(np.arange(len(here), dtype=np.int64), len(here), "copies", seed, 0)
    owed = [0.0] * lacking.shape[1]
    for content in here[np.lexsort((ranks, strata[here]))].tolist():
        size = int(sizes[content])
        for split, part in enumerate(lacking[strata[content]].tolist()):
            owed[split] += size * part
        splits[content] = most = owed.index(max(owed))
        owed[most] -= size
    return splits


def _by_group(rules: Rules, images: Images, groups: dict[str, int]) -> tuple[Splits, dict[str, int], Bools]:
    """Each image where its group is. Also gives the splits of all groups, and which images are duplicates."""
    total = len(np.unique(images.clusters[images.live])) if rules.config.drop_duplicates else int(images.live.sum())
    fractions = rules.config.fractions(total)
    splits, of_group = assign_by_group(images, groups, fractions, rules.config.seed)
    in_conflict = images.live.copy()
    in_conflict[in_conflict] = of_group[images.groups[in_conflict]] != splits[in_conflict]
    is_duplicate = _find_duplicates(rules, images, splits, in_conflict)
    if (left := in_conflict & ~is_duplicate).any():
        with_copies = np.flatnonzero(in_conflict & np.isin(images.clusters, images.clusters[left]))
        raise conflict_of(images, splits, of_group, with_copies, str(rules.config.group_by))
    return splits, groups | dict(zip(images.group_names, of_group.tolist(), strict=True)), is_duplicate

"""What becomes of each image where counts alone do not say: its split, or that it is left out.

Images may be gone from the source, removed by a list, or doubles of others; a split may be known from earlier slices,
or be that of a whole group (a patient, a video). All are decided here at once, by at most 50 bytes of memory for each
image; an image's *fate* is the number of its split in SPLIT_NAMES, or `LEFT_OUT`.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import DataError, UsageError
from etl.partition.config import SPLIT_NAMES, Fractions, ShardConfig, resolve_fractions
from etl.partition.permutation import Integers, permute
from etl.partition.shares import top_up
from etl.partition.strata import PartCounts
from etl.slices.previous import KnownKeys, split_numbers

LEFT_OUT = -2
FREE = -1

Fates = npt.NDArray[np.int8]
COLUMNS = ["key", "sha256", "label", "split", "columns"]


@dataclass(frozen=True)
class Rules:
    """What decides fates: the configuration, the keys that are known, and those to leave out."""

    config: ShardConfig
    classes: int
    known: KnownKeys | None = None
    removed: frozenset[str] = frozenset()


@dataclass
class Decided:
    """The fate and the label of every image, part by part, and how many live ones were left out, by cause.

    ``dealt`` (bool, by the number of a known key) are the known keys that are dealt again.
    """

    fates: list[Fates]
    labels: list[Integers]
    classes: int
    left_out: dict[str, int]
    dealt: npt.NDArray[np.bool_]

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


@dataclass
class _Images:
    """Arrays over the images of all parts: the part sizes, and by image what deciding needs."""

    sizes: list[int] = field(default_factory=list)
    fates: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    labels: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    numbers: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    groups: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    contents: npt.NDArray[np.bytes_] = field(default_factory=lambda: np.zeros(0, dtype="S16"))
    group_names: dict[str, int] = field(default_factory=dict)
    without_group: str | None = None
    columns: set[str] = field(default_factory=set)
    removed: int = 0


def decide(rules: Rules, parts: Iterable[tuple[pa.Table, npt.NDArray[np.bool_]]]) -> Decided:
    """The fates of the images of ``parts``: for each its rows (columns `COLUMNS`) and which of them are live.

    Raises DataError where an image has no split or no group though one is needed, UsageError where none of the known
    keys is there, no image has a group, or known images of one group are in several splits.
    """
    images = _gather(rules, parts)
    _refuse_strangers(rules, images)
    _refuse_unknown_column(rules, images)
    doubles = _find_doubles(images) if rules.config.drop_duplicates else np.zeros(0, dtype=np.int64)
    images.fates[doubles] = LEFT_OUT
    if rules.config.group_by is not None:
        _decide_by_group(rules, images)
    elif rules.config.split is not None:
        _decide_by_share(rules, images)
    elif (images.fates == FREE).any():
        raise DataError(
            f"{int((images.fates == FREE).sum())} images have no split of the source's own;"
            " give fractions: --split train=0.8,test=0.2"
        )
    dealt = np.zeros(len(rules.known) if rules.known is not None else 0, dtype=bool)
    dealt[images.numbers[(images.numbers >= 0) & (images.fates >= 0)]] = True
    ends = np.cumsum(images.sizes)[:-1]
    return Decided(
        np.split(images.fates.astype(np.int8), ends),
        np.split(images.labels, ends),
        rules.classes,
        {"removed_keys": images.removed, "duplicates": len(doubles)},
        dealt,
    )


def _gather(rules: Rules, parts: Iterable[tuple[pa.Table, npt.NDArray[np.bool_]]]) -> _Images:
    images = _Images()
    import pyarrow.compute as pc  # a quarter of what a task takes to start, which needs none of it

    collected: dict[str, list[npt.NDArray[np.generic]]] = {"fates": [], "labels": [], "numbers": [], "groups": []}
    contents: list[npt.NDArray[np.bytes_]] = []
    removed = pa.array(sorted(rules.removed), pa.string())
    for rows, live in parts:
        images.sizes.append(len(rows))
        fates = np.full(len(rows), FREE, dtype=np.int8)
        if rules.config.split is None:
            fates = split_numbers(rows["split"])
        numbers = np.full(len(rows), -1, dtype=np.int64)
        if rules.known is not None:
            numbers = rules.known.find(rows["key"].to_pylist())
            splits = rules.known.splits[numbers]
            fates = np.where((numbers >= 0) & (splits >= 0), splits, fates)
        unwanted = pc.is_in(rows["key"], value_set=removed).to_numpy() & live
        images.removed += int(unwanted.sum())
        fates[~live | unwanted] = LEFT_OUT
        collected["fates"].append(fates)
        collected["labels"].append(rows["label"].to_numpy().astype(np.int32))
        collected["numbers"].append(numbers)
        if rules.config.group_by is not None:
            collected["groups"].append(_number_groups(rules.config.group_by, rows, fates, images))
        if rules.config.drop_duplicates:
            joined = b"".join(content[:16] for content in rows["sha256"].to_pylist())
            contents.append(np.frombuffer(joined, dtype="S16"))
    for name, arrays in collected.items():
        if arrays:
            setattr(images, name, np.concatenate(arrays).astype(np.int64))
    images.contents = np.concatenate(contents) if contents else images.contents
    return images


def _number_groups(column: str, rows: pa.Table, fates: Fates, images: _Images) -> npt.NDArray[np.int32]:
    """The number of each row's group, in the order they first come; -1 for a row that is left out.

    Raises DataError where some images have a group and some have none. As long as none has, the key of the first is
    kept, and the columns that there are.
    """
    import pyarrow.compute as pc

    values = pc.map_lookup(rows["columns"], pa.scalar(column), "first").to_pylist()
    numbers = np.full(len(rows), -1, dtype=np.int32)
    for place in np.flatnonzero(fates != LEFT_OUT).tolist():
        if values[place] is not None:
            numbers[place] = images.group_names.setdefault(values[place], len(images.group_names))
        elif images.without_group is None:
            images.without_group = str(rows["key"][place])
        if images.without_group is not None and images.group_names:
            raise DataError(
                f"{images.without_group} has no value in the column {column!r};"
                " give one for each image: ringslice ingest --columns TABLE"
            )
    if images.without_group is not None:
        images.columns.update(*(chunk.keys.unique().to_pylist() for chunk in rows["columns"].chunks))
    return numbers


def _refuse_unknown_column(rules: Rules, images: _Images) -> None:
    if images.without_group is not None:
        raise UsageError(
            f"--group-by {rules.config.group_by}: no image has a value in this column; columns there are:"
            f" {', '.join(sorted(images.columns)) or 'none'}; add one by ringslice ingest --columns TABLE"
        )


def _refuse_strangers(rules: Rules, images: _Images) -> None:
    if rules.known is not None and len(rules.known) and not (images.numbers >= 0).any():
        raise UsageError(
            f"none of the {len(rules.known)} keys of --splits-from is among these images; it belongs to another dataset"
        )


def _find_doubles(images: _Images) -> Integers:
    """Which images have the content of one before them; those with a known split come before all others."""
    there = np.flatnonzero(images.fates != LEFT_OUT)
    unknown = images.numbers[there] < 0
    order = there[np.lexsort((there, unknown, images.contents[there]))]
    again = images.contents[order[1:]] == images.contents[order[:-1]]
    return np.sort(order[1:][again])


def _decide_by_group(rules: Rules, images: _Images) -> None:
    """Each free image goes where its group is; a group without a known image goes by a seeded hash of its name."""
    assert rules.config.split is not None
    fractions = _fractions(rules.config, images)
    of_group = np.full(len(images.group_names), FREE, dtype=np.int64)
    placed = images.fates >= 0
    of_group[images.groups[placed]] = images.fates[placed]
    if (torn := placed & (of_group[images.groups] != images.fates)).any():
        name = list(images.group_names)[int(images.groups[np.argmax(torn)])]
        raise UsageError(f"--splits-from has images of {rules.config.group_by} {name!r} in several splits")
    for name, number in images.group_names.items():
        if of_group[number] == FREE:
            of_group[number] = SPLIT_NAMES.index(split_of_group(name, fractions, rules.config.seed))
    free = images.fates == FREE
    images.fates[free] = of_group[images.groups[free]]


def split_of_group(group: str, fractions: Fractions, seed: int) -> str:
    """Where a group goes: 64 bits of BLAKE2b over seed and name, as a number from 0 to 1, against the fractions."""
    digest = hashlib.blake2b(f"{seed}\0{group}".encode(), digest_size=8).digest()
    point, reached = Fraction(int.from_bytes(digest, "big"), 1 << 64), Fraction(0)
    for name, share in fractions.items():
        reached += share
        if point < reached:
            return name
    return next(reversed(fractions))


def _decide_by_share(rules: Rules, images: _Images) -> None:
    """Free images are dealt by fractions, so that each split comes as near as can be to its share of the whole."""
    fractions = _fractions(rules.config, images)
    names = [SPLIT_NAMES.index(name) for name in fractions]
    stratified = rules.config.partition == "stratified"
    strata = images.labels if stratified else np.zeros_like(images.labels)
    number = rules.classes if stratified else 1
    known = [np.bincount(strata[images.fates == name], minlength=number) for name in names]
    free = np.flatnonzero(images.fates == FREE)
    by_stratum = free[np.argsort(strata[free], kind="stable")]
    sizes = np.bincount(strata[free], minlength=number)
    counts = top_up(np.stack(known, axis=1), sizes.tolist(), list(fractions.values()))
    for stratum, here in enumerate(np.split(by_stratum, np.cumsum(sizes)[:-1])):
        ranks = permute(np.arange(len(here), dtype=np.int64), len(here), "split", rules.config.seed, stratum)
        images.fates[here] = np.array(names)[np.searchsorted(np.cumsum(counts[stratum]), ranks, side="right")]


def _fractions(config: ShardConfig, images: _Images) -> Fractions:
    assert config.split is not None
    return resolve_fractions(config.split, int((images.fates != LEFT_OUT).sum()))

"""What decides the splits of images, as arrays: the rows of all parts, joined with what earlier slices record."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import DataError, UsageError
from etl.partition.config import ShardConfig
from etl.partition.shares import Integers
from etl.slices.history import Bits, Bools, SplitHistory, find, split_numbers

LEFT_OUT = -2
NO_SPLIT = -1

Splits = npt.NDArray[np.int8]  # numbers in SPLIT_NAMES, `NO_SPLIT` or `LEFT_OUT`

# Indexed by a set of splits (bit n: SPLIT_NAMES[n]): its split if it has only one, else NO_SPLIT; its first split.
_ONLY = np.array([NO_SPLIT, 0, 1, NO_SPLIT, 2, NO_SPLIT, NO_SPLIT, NO_SPLIT], dtype=np.int8)
_LOWEST = np.array([NO_SPLIT, 0, 1, 0, 2, 0, 1, 0], dtype=np.int8)


@dataclass(frozen=True)
class Rules:
    """What decides splits: the configuration, what earlier slices record, and the keys to leave out."""

    config: ShardConfig
    classes: int
    history: SplitHistory = field(default_factory=SplitHistory.empty)
    removed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Images:
    """Arrays over the images of all parts, in their order; ``sizes`` are the images of each part.

    ``live`` are those that are neither gone nor ``removed`` (their keys). ``own`` is the source's split, ``by_key`` and
    ``by_content`` those that earlier slices record, each `NO_SPLIT` if there is none. ``key_rows`` and ``content_rows``
    are the rows of an image's key and content in the history, -1 for none. Images with the same ``clusters`` have the
    same content, those with the same ``groups`` (indices of ``group_names``, -1 for none) are in one group.
    """

    sizes: list[int]
    keys: pa.ChunkedArray
    removed: list[str]
    live: Bools
    labels: Integers
    own: Splits
    by_key: Splits
    by_content: Splits
    key_rows: Integers
    content_rows: Integers
    clusters: Integers
    groups: Integers
    group_names: list[str]


def gather(rules: Rules, parts: Iterable[tuple[pa.Table, Bools]]) -> Images:
    """The images of ``parts``: for each its rows (`IMAGE_COLUMNS`) and which of them are live.

    Raises UsageError if the history has none of them, or none has a group; DataError if only some have one.
    """
    import pyarrow.compute as pc  # takes a quarter of a task's start, and tasks do not need it

    sizes, tables, there, column = list[int](), list[pa.Table](), [np.zeros(0, dtype=bool)], rules.config.group_by
    names = set[str]()  # of the columns to group by
    for rows, live in parts:
        sizes.append(len(rows))
        there.append(live)
        if column is not None:
            names.update(*(chunk.keys.unique().to_pylist() for chunk in rows["columns"].chunks))
        tables.append(rows.drop_columns("columns").append_column("group", groups_of(rows, column)))
    table = pa.concat_tables(tables)
    if table["sha256"].type != pa.binary(32):
        raise DataError(f"a column of SHA-256 is {table['sha256'].type}, not {pa.binary(32)}")
    unwanted = pc.is_in(table["key"], value_set=pa.array(sorted(rules.removed), pa.string())).to_numpy()
    live = np.concatenate(there)
    removed = table["key"].filter(pa.array(unwanted & live)).to_pylist()
    live &= ~unwanted
    groups, group_names = _number_groups(table, live, column, names)
    own = split_numbers(table["split"])
    known = _recorded_splits(rules.history, table, own, group_names)
    clusters = pc.rank(table["sha256"], "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    labels = table["label"].to_numpy().astype(np.int64)
    return Images(sizes, table["key"], removed, live, labels, own, *known, clusters, groups, group_names)


def groups_of(rows: pa.Table, column: str | None) -> pa.ChunkedArray | pa.Array:
    """The value of each row (column ``columns``) in the column to group by; null if there is none."""
    import pyarrow.compute as pc

    return pa.nulls(len(rows), pa.string()) if column is None else pc.map_lookup(rows["columns"], column, "first")


def _recorded_splits(
    history: SplitHistory, table: pa.Table, own: Splits, groups: list[str]
) -> tuple[Splits, Splits, Integers, Integers]:
    """By key and by content, the split of each image and its row in the history."""
    key_rows, content_rows = find(table["key"], history.keys), find(table["sha256"], history.contents)
    has_key, has_content = key_rows >= 0, content_rows >= 0
    if len(history.keys) and not (has_key.any() or has_content.any() or not history.groups.keys().isdisjoint(groups)):
        raise UsageError(
            f"none of the {len(history.keys)} keys of --splits-from is among these images, nor any of their contents or"
            " groups; it belongs to another dataset, or leave --splits-from out to assign all splits again"
        )
    by_key, bits = np.full(len(table), NO_SPLIT, dtype=np.int8), np.zeros(len(table), dtype=np.uint8)
    by_key[has_key] = history.key_splits[key_rows[has_key]]
    bits[has_content] = history.content_splits[content_rows[has_content]]
    return by_key, _split_of_contents(bits, by_key, own), key_rows, content_rows


def _split_of_contents(bits: Bits, by_key: Splits, own: Splits) -> Splits:
    """The split of each content. If it has several: that of the key, else the source's, else the first."""
    chosen = _ONLY[bits]
    several = (chosen == NO_SPLIT) & (bits > 0)
    for preferred in (by_key, own):
        fits = several & (chosen == NO_SPLIT) & (preferred >= 0)
        fits[fits] = (bits[fits] >> preferred[fits].astype(np.uint8)) & 1 == 1
        chosen[fits] = preferred[fits]
    return np.where(several & (chosen == NO_SPLIT), _LOWEST[bits], chosen)


def _number_groups(table: pa.Table, live: Bools, column: str | None, names: set[str]) -> tuple[Integers, list[str]]:
    """The number of each live image's group, -1 for others, and the names of the groups in the order of their numbers.

    ``names`` are the columns that there are. Raises DataError if some live images have a group and some have none,
    UsageError if none has.
    """
    numbers = np.full(len(table), -1, dtype=np.int64)
    if column is None:
        return numbers, []
    encoded = table["group"].filter(pa.array(live)).combine_chunks().dictionary_encode()
    if encoded.null_count and len(encoded.dictionary):
        first = table["key"].filter(pa.array(live)).filter(encoded.is_null())[0]
        raise DataError(
            f"{first} has no value in the column {column!r}; give one for each image: ringslice ingest --columns TABLE"
        )
    if encoded.null_count:
        raise UsageError(
            f"--group-by {column}: no image has a value in this column; columns there are:"
            f" {', '.join(sorted(names)) or 'none'}; add one by ringslice ingest --columns TABLE"
        )
    numbers[live] = encoded.indices.to_numpy()
    return numbers, encoded.dictionary.to_pylist()

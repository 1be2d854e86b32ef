"""What decides the splits of images, as arrays: the rows of all parts, joined with what earlier slices remember."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import DataError, UsageError
from etl.partition.config import ShardConfig
from etl.partition.permutation import Integers
from etl.slices.memory import Bools, Digests, Memory, content_digests, split_numbers

LEFT_OUT = -2
FREE = -1

Splits = npt.NDArray[np.int8]  # numbers in SPLIT_NAMES, `FREE` or `LEFT_OUT`

COLUMNS = ["key", "sha256", "label", "split", "columns"]

# by a set of splits as bits: the only split in it, else `FREE`; and the lowest
_ONLY = np.array([FREE, 0, 1, FREE, 2, FREE, FREE, FREE], dtype=np.int8)
_LOWEST = np.array([FREE, 0, 1, 0, 2, 0, 1, 0], dtype=np.int8)


@dataclass(frozen=True)
class Rules:
    """What decides splits: the configuration, what earlier slices remember, and the keys to leave out."""

    config: ShardConfig
    classes: int
    memory: Memory | None = None
    removed: frozenset[str] = frozenset()


@dataclass
class Images:
    """Arrays over the images of all parts, in their order; ``sizes`` are the images of each part.

    ``live`` are those that are neither gone nor removed. ``own`` is the source's split, ``by_key`` and ``by_content``
    those that earlier slices remember, each `FREE` where there is none. ``keys`` and ``contents`` are the numbers of
    what is remembered, -1 for none. Images with the same ``clusters`` have the same content, those with the same
    ``groups`` (numbers in ``group_names``) are in one group.
    """

    sizes: list[int] = field(default_factory=list)
    live: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    labels: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    own: Splits = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    by_key: Splits = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    by_content: Splits = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    keys: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    contents: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    clusters: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    groups: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    group_names: dict[str, int] = field(default_factory=dict)
    names: list[pa.ChunkedArray] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def key(self, number: int) -> str:
        """The key of an image."""
        ends = np.cumsum(self.sizes)
        part = int(np.searchsorted(ends, number, side="right"))
        return str(self.names[part][number - int(ends[part]) + self.sizes[part]])


def gather(rules: Rules, parts: Iterable[tuple[pa.Table, Bools]]) -> Images:
    """The images of ``parts``: for each its rows (columns `COLUMNS`) and which of them are live.

    Raises UsageError where none of them is remembered, or none has a group; DataError where only some have one.
    """
    images = Images()
    import pyarrow.compute as pc  # a quarter of what a task takes to start, which needs none of it

    removed = pa.array(sorted(rules.removed), pa.string())
    groups = _Groups(rules.config.group_by, images.group_names)
    digests: list[Digests] = [np.zeros(0, dtype="S16")]
    columns: dict[str, list[npt.NDArray[np.generic]]] = {name: [] for name in ("live", "labels", "own", "keys")}
    for rows, there in parts:
        images.sizes.append(len(rows))
        unwanted = pc.is_in(rows["key"], value_set=removed).to_numpy() & there
        live = there & ~unwanted
        images.removed += rows["key"].filter(pa.array(unwanted)).to_pylist()
        columns["live"].append(live)
        columns["labels"].append(rows["label"].to_numpy().astype(np.int64))
        columns["own"].append(split_numbers(rows["split"]))
        if rules.memory is not None:
            columns["keys"].append(rules.memory.keys.find(rows["key"].to_pylist()))
        digests.append(content_digests(rows["sha256"]))
        groups.add(rows, live)
        images.names.append(rows["key"])
    for name, arrays in columns.items():
        if arrays:
            setattr(images, name, np.concatenate(arrays))
    images.groups = groups.numbers()
    _remember(rules.memory, images, np.concatenate(digests))
    return images


def _remember(memory: Memory | None, images: Images, digests: Digests) -> None:
    """Set what is known by key and content."""
    images.clusters = np.unique(digests, return_inverse=True)[1].reshape(-1)
    if memory is None:
        images.by_key = images.by_content = np.full(len(digests), FREE, dtype=np.int8)
        images.keys = images.contents = np.full(len(digests), -1, dtype=np.int64)
        return
    images.contents = memory.contents.find(digests)
    known, keys = images.contents >= 0, images.keys
    remembered = known.any() or (keys >= 0).any() or not memory.groups.keys().isdisjoint(images.group_names)
    if len(memory.keys) and not remembered:
        raise UsageError(
            f"none of the {len(memory.keys)} keys of --splits-from is among these images, nor any of their contents or"
            " groups; it belongs to another dataset, or leave --splits-from out to assign all splits anew"
        )
    images.by_key = np.full(len(digests), FREE, dtype=np.int8)
    images.by_key[keys >= 0] = memory.keys.splits[keys[keys >= 0]]
    bits = np.zeros(len(digests), dtype=np.uint8)
    bits[known] = memory.contents.splits[images.contents[known]]
    images.by_content = _choose(bits, images.by_key, images.own)


def _choose(bits: npt.NDArray[np.uint8], by_key: Splits, own: Splits) -> Splits:
    """Of the splits of each content the only one; of several that of the key, else the source's, else the first."""
    chosen = _ONLY[bits]
    several = (chosen == FREE) & (bits > 0)
    for preferred in (by_key, own):
        fits = several & (chosen == FREE) & (preferred >= 0)
        fits[fits] = (bits[fits] >> preferred[fits].astype(np.uint8)) & 1 == 1
        chosen[fits] = preferred[fits]
    return np.where(several & (chosen == FREE), _LOWEST[bits], chosen)


class _Groups:
    """Numbers the groups of images, in the order in which they first come."""

    def __init__(self, column: str | None, names: dict[str, int]) -> None:
        self._column, self._names = column, names
        self._numbers: list[Integers] = [np.zeros(0, dtype=np.int64)]
        self._without: str | None = None
        self._columns: set[str] = set()

    def add(self, rows: pa.Table, live: Bools) -> None:
        """Number the groups of a part's rows; -1 for a row that is not live.

        Raises DataError where some images have a group and some have none. As long as none has, the key of the first
        is kept, and the columns that there are.
        """
        import pyarrow.compute as pc

        numbers = np.full(len(rows), -1, dtype=np.int64)
        self._numbers.append(numbers)
        if self._column is None:
            return
        values = pc.map_lookup(rows["columns"], pa.scalar(self._column), "first").to_pylist()
        for place in np.flatnonzero(live).tolist():
            if values[place] is not None:
                numbers[place] = self._names.setdefault(values[place], len(self._names))
            elif self._without is None:
                self._without = str(rows["key"][place])
            if self._without is not None and self._names:
                raise DataError(
                    f"{self._without} has no value in the column {self._column!r};"
                    " give one for each image: ringslice ingest --columns TABLE"
                )
        if self._without is not None:
            self._columns.update(*(chunk.keys.unique().to_pylist() for chunk in rows["columns"].chunks))

    def numbers(self) -> Integers:
        """Those of all rows. Raises UsageError where no image has a group."""
        if self._without is not None:
            raise UsageError(
                f"--group-by {self._column}: no image has a value in this column; columns there are:"
                f" {', '.join(sorted(self._columns)) or 'none'}; add one by ringslice ingest --columns TABLE"
            )
        return np.concatenate(self._numbers)

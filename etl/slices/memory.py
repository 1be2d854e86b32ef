"""What slices remember: the split of each key, content and group that they, or slices before them, ever dealt.

A content is the SHA-256 of a source image. Keys and contents of the examples stand in the table of examples; those that
are not dealt any more in ``departed.parquet`` and ``contents.parquet``; groups in ``groups.parquet``.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.partition.config import SPLIT_NAMES
from etl.partition.permutation import Integers
from etl.slices.manifest import CONTENTS_FILE, DEPARTED_FILE, EXAMPLES_FILE, GROUPS_FILE, MEMORY_TABLES
from etl.storage.place import Place

Digests = npt.NDArray[np.bytes_]
Bools = npt.NDArray[np.bool_]

_DIGEST = np.dtype("S16")


class _Digests:
    """Digests (16 bytes each), sorted; a digest is found by its place among them, its *number*."""

    def __init__(self, ascending: Digests) -> None:
        self._ascending = ascending

    def __len__(self) -> int:
        return len(self._ascending)

    def find(self, digests: Digests) -> Integers:
        """The number of each digest, -1 for an unknown one: int64 of shape (digests,)."""
        if not len(self._ascending):
            return np.full(len(digests), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self._ascending, digests), len(self._ascending) - 1)
        return np.where(self._ascending[places] == digests, places, -1)


class KnownKeys:
    """Keys, each with its split.

    ``splits`` (int8, by the number that `find` gives) is the split's number in SPLIT_NAMES, -1 for a key that was
    removed before it had any.
    """

    def __init__(self, rows: Iterable[pa.Table]) -> None:
        digests, splits = [np.zeros(0, dtype=_DIGEST)], [np.zeros(0, dtype=np.int8)]
        for table in rows:
            digests.append(digest_keys(table["key"].to_pylist()))
            splits.append(split_numbers(table["split"]))
        unsorted = np.concatenate(digests)
        order = np.argsort(unsorted)
        self._digests = _Digests(unsorted[order])
        self.splits = np.concatenate(splits)[order]

    def __len__(self) -> int:
        return len(self._digests)

    def find(self, keys: list[str]) -> Integers:
        """The number of each key, -1 for an unknown one: int64 of shape (keys,)."""
        return self._digests.find(digest_keys(keys))


class KnownContents:
    """Contents, each with its splits: one, unless the source put copies of an image into several.

    ``splits`` (uint8, by the number that `find` gives) has bit n set for the split SPLIT_NAMES[n].
    """

    def __init__(self, rows: Iterable[pa.Table]) -> None:
        digests, bits = [np.zeros(0, dtype=_DIGEST)], [np.zeros(0, dtype=np.uint8)]
        for table in rows:
            digests.append(content_digests(table["sha256"]))
            bits.append(np.left_shift(1, split_numbers(table["split"])).astype(np.uint8))
        unsorted = np.concatenate(digests)
        order = np.argsort(unsorted)
        ascending = unsorted[order]
        starts = np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1]))[: len(ascending)])
        self._digests = _Digests(ascending[starts])
        sorted_bits = np.concatenate(bits)[order]
        self.splits = np.bitwise_or.reduceat(sorted_bits, starts) if len(starts) else sorted_bits

    def __len__(self) -> int:
        return len(self._digests)

    def find(self, digests: Digests) -> Integers:
        """The number of each content, -1 for an unknown one: int64 of shape (digests,)."""
        return self._digests.find(digests)


def digest_keys(keys: Iterable[str]) -> Digests:
    """128 bits of BLAKE2b (RFC 7693) of each key: bytes of shape (keys,)."""
    joined = b"".join(hashlib.blake2b(key.encode(), digest_size=16).digest() for key in keys)
    return np.frombuffer(joined, dtype=_DIGEST)


def content_digests(column: pa.ChunkedArray) -> Digests:
    """The first 128 bits of each SHA-256 (a column of binary(32)): bytes of shape (rows,).

    Raises DataError for a column of another type.
    """
    if column.type != pa.binary(32):
        raise DataError(f"a column of SHA-256 is {column.type}, not {pa.binary(32)}")
    found = [np.zeros(0, dtype=_DIGEST)]
    for chunk in column.chunks:
        if len(chunk):
            data = np.frombuffer(chunk.buffers()[1], np.uint8, 32 * len(chunk), 32 * chunk.offset)
            found.append(np.ascontiguousarray(data.reshape(-1, 32)[:, :16]).view(_DIGEST).reshape(-1))
    return np.concatenate(found)


def split_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """The number of each split name in SPLIT_NAMES, -1 for none: int8 of shape (rows,)."""
    import pyarrow.compute as pc  # a quarter of what a task takes to start, which needs none of it

    numbers = pc.index_in(column, value_set=pa.array(SPLIT_NAMES)).fill_null(-1)
    return numbers.to_numpy().astype(np.int8)


@dataclass(frozen=True)
class Memory:
    """All that finished slices in ``folder`` remember.

    ``groups`` has the number of each group's split, ``removed`` the keys that were removed for good.
    """

    folder: Place
    keys: KnownKeys
    contents: KnownContents
    groups: Mapping[str, int]
    removed: frozenset[str] = frozenset()

    @classmethod
    def read(cls, folder: Place, manifest: Mapping[str, Any]) -> "Memory":
        """Raises DataError where a table is not the one that the manifest names."""
        for name in MEMORY_TABLES:
            _require_as_written(folder, manifest["tables"][name])
        groups = parquet_tables.read_table(folder / GROUPS_FILE, ["group", "split"])
        numbers = split_numbers(groups["split"]).tolist()
        return cls(
            folder,
            KnownKeys(_rows(folder, DEPARTED_FILE, "key")),
            KnownContents(_rows(folder, CONTENTS_FILE, "sha256")),
            dict(zip(groups["group"].to_pylist(), numbers, strict=True)),
            frozenset(removed_keys(folder)),
        )

    def departed(self, dealt: Bools) -> pa.Table:
        """Rows (key, split) of the keys that are not ``dealt`` (bool by a key's number)."""
        gone = [table.filter(~dealt[self.keys.find(table["key"].to_pylist())]) for table in self._rows_of("key")]
        return pa.concat_tables(gone)

    def departed_contents(self, dealt: npt.NDArray[np.uint8]) -> pa.Table:
        """Rows (sha256, split), sorted, of the contents that are not ``dealt`` in a split that they were in.

        ``dealt`` (by a content's number) has bit n set for the split SPLIT_NAMES[n].
        """
        gone = []
        for table in self._rows_of("sha256"):
            bits = dealt[self.contents.find(content_digests(table["sha256"]))]
            gone.append(table.filter(pa.array(bits >> split_numbers(table["split"]).astype(np.uint8) & 1 == 0)))
        rows = pa.concat_tables(gone).group_by(["sha256", "split"]).aggregate([])
        return rows.sort_by([("sha256", "ascending"), ("split", "ascending")]).cast(schemas.CONTENTS)

    def _rows_of(self, column: str) -> Iterator[pa.Table]:
        return _rows(self.folder, DEPARTED_FILE if column == "key" else CONTENTS_FILE, column)


def _rows(folder: Place, departed: str, column: str) -> Iterator[pa.Table]:
    yield from parquet_tables.iterate_groups(folder / EXAMPLES_FILE, [column, "split"])
    yield parquet_tables.read_table(folder / departed, [column, "split"])


def _require_as_written(folder: Place, told: Mapping[str, Any]) -> None:
    place = folder / told["file"]
    remedy = "run ringslice verify --repair" if place.name == EXAMPLES_FILE else "put the original back"
    try:
        if place.sha256() != told["sha256"]:
            raise DataError(
                f"{place} has another SHA-256 than its manifest records, and splits cannot be kept by it; {remedy}"
            )
    except FileNotFoundError:
        raise DataError(f"{place} is missing, and splits cannot be kept without it; {remedy}") from None


def removed_keys(folder: Place) -> list[str]:
    """Keys that the slices in ``folder`` remember as removed for good."""
    table = parquet_tables.read_table(folder / DEPARTED_FILE, ["key", "removed"])
    return list(table.filter(table["removed"])["key"].to_pylist())

"""Keys that earlier slices gave a split: looked up by the digest of a key, 17 bytes of memory for each."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.formats import parquet_tables
from etl.manifest import DEPARTED_FILE, EXAMPLES_FILE
from etl.partition.config import SPLIT_NAMES
from etl.partition.permutation import Integers
from etl.storage import Place

_DIGEST = np.dtype("S16")


class KnownKeys:
    """The keys of a set of slices, and of those before that it remembers, each with its split.

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
        self._digests = unsorted[order]
        self.splits = np.concatenate(splits)[order]

    @classmethod
    def of_slices(cls, folder: Place, manifest: Mapping[str, Any]) -> "KnownKeys":
        """All that these finished slices know."""
        return cls(_known_rows(folder, manifest))

    def __len__(self) -> int:
        return len(self._digests)

    def find(self, keys: list[str]) -> Integers:
        """The number of each key, -1 for an unknown one: int64 of shape (keys,)."""
        digests = digest_keys(keys)
        if not len(self._digests):
            return np.full(len(keys), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self._digests, digests), len(self._digests) - 1)
        return np.where(self._digests[places] == digests, places, -1)


def digest_keys(keys: Iterable[str]) -> npt.NDArray[np.bytes_]:
    """128 bits of BLAKE2b (RFC 7693) of each key: bytes of shape (keys,)."""
    joined = b"".join(hashlib.blake2b(key.encode(), digest_size=16).digest() for key in keys)
    return np.frombuffer(joined, dtype=_DIGEST)


def split_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """The number of each split name in SPLIT_NAMES, -1 for none: int8 of shape (rows,)."""
    numbers = {name: number for number, name in enumerate(SPLIT_NAMES)}
    return np.array([numbers.get(name, -1) for name in column.to_pylist()], dtype=np.int8)


def removed_keys(folder: Place) -> list[str]:
    """Keys that the slices in ``folder`` remember as removed for good."""
    table = parquet_tables.read_table(folder / DEPARTED_FILE)
    return list(table.filter(table["removed"])["key"].to_pylist())


def departed_rows(
    folder: Place, manifest: Mapping[str, Any], known: KnownKeys, dealt: npt.NDArray[np.bool_]
) -> pa.Table:
    """Rows (key, split) of ``known`` whose number is not among the ``dealt`` (bool by number)."""
    gone = []
    for table in _known_rows(folder, manifest):
        numbers = known.find(table["key"].to_pylist())
        gone.append(table.filter(~dealt[numbers]))
    return pa.concat_tables(gone)


def _known_rows(folder: Place, manifest: Mapping[str, Any]) -> Iterator[pa.Table]:
    yield from parquet_tables.iterate_groups(folder / EXAMPLES_FILE, ["key", "split"])
    yield parquet_tables.read_table(folder / DEPARTED_FILE, ["key", "split"])

"""What slices record of splits: that of each key, content and group that they, or slices before them, ever had.

A content is the SHA-256 of a source image. Keys and contents of the examples are in the table of examples; those that
are not among them any more in ``departed.parquet`` and ``contents.parquet``; groups in ``groups.parquet``. Keys to
remove for good come in a text file (``--remove``).
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables, schemas
from etl.partition.config import SPLIT_NAMES
from etl.partition.permutation import Integers
from etl.slices.manifest import table_file
from etl.storage.place import Place

Bools = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]  # sets of splits: bit n for SPLIT_NAMES[n]

RETIRED_TABLES = ("departed", "contents", "groups")
TABLES_OF_HISTORY = ("examples", *RETIRED_TABLES)
BYTE_ORDER_MARK = "\ufeff"


def find(values: pa.ChunkedArray, known: pa.ChunkedArray) -> Integers:
    """The place of each value among those that are ``known``, -1 for any other: int64 of shape (values,)."""
    import pyarrow.compute as pc  # a quarter of what a task takes to start, which needs none of it

    return pc.index_in(values, value_set=known).fill_null(-1).to_numpy().astype(np.int64)


def split_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """The number of each split name in SPLIT_NAMES, -1 for none: int8 of shape (rows,)."""
    return find(column, pa.chunked_array([pa.array(SPLIT_NAMES)])).astype(np.int8)


@dataclass(frozen=True)
class SplitHistory:
    """All that finished slices record.

    ``keys`` (string, each once) have ``key_splits``: int8, a number in SPLIT_NAMES, -1 for a key that was removed
    before it had any. ``contents`` (binary(32), each once) have ``content_splits``: one, unless the source put copies
    of an image into several. ``groups`` has the number of each group's split, ``removed`` the keys that were removed
    for good.
    """

    keys: pa.ChunkedArray
    key_splits: npt.NDArray[np.int8]
    contents: pa.ChunkedArray
    content_splits: Bits
    groups: Mapping[str, int]
    removed: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, keys: pa.Table, contents: pa.Table, groups: Mapping[str, int], removed: frozenset[str] = frozenset()
    ) -> "SplitHistory":
        """From tables with the columns key and split (each key once), and sha256 and split."""
        encoded = contents["sha256"].combine_chunks().dictionary_encode()
        bits = np.zeros(len(encoded.dictionary), dtype=np.uint8)
        splits = np.left_shift(1, split_numbers(contents["split"])).astype(np.uint8)
        np.bitwise_or.at(bits, encoded.indices.to_numpy(), splits)
        known = pa.chunked_array([encoded.dictionary])
        return cls(keys["key"], split_numbers(keys["split"]), known, bits, groups, removed)

    @classmethod
    def empty(cls) -> "SplitHistory":
        """That of slices without any before them."""
        return cls.of(schemas.DEPARTED.empty_table(), schemas.CONTENTS.empty_table(), {})

    @classmethod
    def read(cls, folder: Place, manifest: Mapping[str, Any]) -> "SplitHistory":
        """That of the slices in ``folder``. Raises DataError if a table is not the one that the manifest names."""
        for name in TABLES_OF_HISTORY:
            _require_as_written(folder, manifest["tables"][name])
        examples = parquet_tables.read_table(folder / table_file("examples"), ["key", "split", "sha256"])
        departed = parquet_tables.read_table(folder / table_file("departed"), ["key", "split"])
        contents = parquet_tables.read_table(folder / table_file("contents"), ["sha256", "split"])
        groups = parquet_tables.read_table(folder / table_file("groups"), ["group", "split"])
        return cls.of(
            pa.concat_tables([examples.select(["key", "split"]), departed]),
            pa.concat_tables([examples.select(["sha256", "split"]), contents]),
            dict(zip(groups["group"].to_pylist(), split_numbers(groups["split"]).tolist(), strict=True)),
            frozenset(removed_keys(folder)),
        )

    def find_seen(self, places: Integers, contents: Integers, splits: npt.NDArray[np.int8]) -> tuple[Bools, Bits]:
        """Which keys are examples again, and the splits that the contents are in now, by a key's and a content's place.

        ``places`` and ``contents`` are those of all examples, -1 for what is new; ``splits`` their numbers.
        """
        seen_keys = np.zeros(len(self.keys), dtype=bool)
        seen_keys[places[places >= 0]] = True
        seen_contents, known = np.zeros(len(self.contents), dtype=np.uint8), contents >= 0
        np.bitwise_or.at(seen_contents, contents[known], np.left_shift(1, splits[known]).astype(np.uint8))
        return seen_keys, seen_contents

    def retired_tables(
        self, seen_keys: Bools, seen_contents: Bits, *, removed: frozenset[str], groups: Mapping[str, int]
    ) -> dict[str, pa.Table]:
        """The tables ``departed``, ``contents`` and ``groups`` of slices that have these splits of all ``groups``.

        Departed are the keys that are not seen, and those of ``removed`` that never were there.
        """
        import pyarrow.compute as pc

        listed = pa.chunked_array([sorted(removed)], pa.string())
        unknown = listed.filter(pa.array(find(listed, self.keys) < 0))
        splits = pa.array(self.key_splits[~seen_keys], mask=self.key_splits[~seen_keys] < 0)
        names = pa.chunked_array([pa.array(SPLIT_NAMES).take(splits), pa.nulls(len(unknown), pa.string())])
        keys = pa.chunked_array([*self.keys.filter(pa.array(~seen_keys)).chunks, *unknown.chunks], pa.string())
        departed = {"key": keys, "split": names, "removed": pc.is_in(keys, value_set=listed.combine_chunks())}
        in_order = sorted(groups.items())
        of_groups = [SPLIT_NAMES[number] for _, number in in_order]
        return {
            "departed": pa.table(departed, schemas.DEPARTED).combine_chunks(),
            "contents": self._retired_contents(seen_contents),
            "groups": pa.table({"group": [name for name, _ in in_order], "split": of_groups}, schemas.GROUPS),
        }

    def _retired_contents(self, seen: Bits) -> pa.Table:
        """`schemas.CONTENTS` of the contents in those of their splits in which they are not ``seen``."""
        left = self.content_splits & ~seen
        tables = []
        for number, name in enumerate(SPLIT_NAMES):
            contents = self.contents.filter(pa.array(left >> number & 1 == 1))
            tables.append(pa.table({"sha256": contents, "split": pa.repeat(name, len(contents))}))
        rows = pa.concat_tables(tables).sort_by([("sha256", "ascending"), ("split", "ascending")])
        return rows.cast(schemas.CONTENTS)


def _require_as_written(folder: Place, recorded: Mapping[str, Any]) -> None:
    place = folder / recorded["file"]
    remedy = "run ringslice verify --repair" if place.name == table_file("examples") else "put the original back"
    try:
        if place.sha256() != recorded["sha256"]:
            raise DataError(
                f"{place} has another SHA-256 than its manifest records, and splits cannot be kept by it; {remedy}"
            )
    except FileNotFoundError:
        raise DataError(f"{place} is missing, and splits cannot be kept without it; {remedy}") from None


def removed_keys(folder: Place) -> list[str]:
    """Keys that the slices in ``folder`` record as removed for good."""
    table = parquet_tables.read_table(folder / table_file("departed"), ["key", "removed"])
    return list(table.filter(table["removed"])["key"].to_pylist())


def read_keys(place: Place, option: str = "--remove") -> list[str]:
    """The keys in a text file of one on each line, sorted, each once; a byte order mark is skipped.

    Raises UsageError if it is not such a file.
    """
    wrong = {"NotFound": "there is no such file", "Directory": "it is a folder"}.get(place.info().type.name, "")
    text = ""
    try:
        text = "" if wrong else place.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        wrong = "it is not text"
    if wrong:
        raise UsageError(f"{option} {place}: {wrong}; give a text file of keys, one on each line")
    return sorted({line.rstrip("\r") for line in text.split("\n") if line.rstrip("\r")})


def list_sha256(keys: Iterable[str]) -> str:
    """The SHA-256, in hexadecimal, of a sorted list of keys: as manifests record it."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()

"""Table of removed rows: images of packs that the source no longer has, or not unchanged."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.stages.marker import fingerprint_of
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place

REMOVED_FOLDER = "removed"

Mask = npt.NDArray[np.bool_]


class Removed:
    """The keys of each pack's removed rows. In memory: the whole table, as Arrow has it."""

    def __init__(self, table: pa.Table) -> None:
        self._keys = table["key"].combine_chunks()
        packs = table["pack"].combine_chunks().dictionary_encode()
        numbers = packs.indices.to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        runs = [(start, stop) for start, stop in pairwise(bounds) if stop > start]
        names = packs.dictionary.to_pylist()
        self._runs = {names[numbers[start]]: (start, stop) for start, stop in runs}
        if len(self._runs) != len(runs):
            raise DataError("the table of removed rows is not sorted by pack")

    @classmethod
    def read(cls, root: Place, marker: Mapping[str, Any]) -> Self:
        """What ``marker``, of ``raw`` or of ``normalized``, says is removed.

        Raises DataError where the table is damaged or another.
        """
        told = marker["removed"]
        if told is None:
            return cls(schemas.REMOVED.empty_table())
        place = root / "raw" / told["file"]
        table = parquet_tables.read_table(place, ["pack", "key"])
        if table.num_rows != told["rows"]:
            raise DataError(f"{place} has {table.num_rows} rows, {told['rows']} were written; ingest with --overwrite")
        return cls(table)

    def number(self, pack: str) -> int:
        """How many rows of a pack are removed."""
        start, stop = self._runs.get(pack, (0, 0))
        return stop - start

    def live(self, pack: str, keys: pa.Array | pa.ChunkedArray) -> Mask:
        """Whether the image of each of these keys, of rows of one pack or its part, is live: bool of shape (rows,)."""
        start, stop = self._runs.get(pack, (0, 0))
        import pyarrow.compute as pc  # a quarter of what a task takes to start, which needs none of it

        gone = pc.is_in(keys, value_set=self._keys.slice(start, stop - start))
        return ~np.asarray(gone.to_numpy(zero_copy_only=False) if isinstance(gone, pa.Array) else gone.to_numpy())


def publish_removed(raw: Place, attempts: Place, table: pa.Table) -> dict[str, Any] | None:
    """Publish a table of removed rows (`etl.formats.schemas.REMOVED`), named by its content; returns its entry for
    markers, None if it is empty."""
    if not table.num_rows:
        return None
    data = parquet_tables.table_bytes(table)
    sha256 = fingerprint_of(data)
    file = f"{REMOVED_FOLDER}/{sha256[:16]}.parquet"
    publish_bytes(raw / file, attempts, data)
    return {"file": file, "rows": table.num_rows, "sha256": sha256}

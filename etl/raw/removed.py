"""Table of removed rows: images of packs that the source no longer has, or not unchanged."""

from collections.abc import Mapping
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
    """The keys of the removed rows of each pack, all in memory."""

    def __init__(self, table: pa.Table) -> None:
        keys, packs = table["key"].combine_chunks(), table["pack"].combine_chunks().dictionary_encode()
        numbers = packs.indices.to_numpy()
        self._keys = {
            name: keys.take(pa.array(np.flatnonzero(numbers == number)))
            for number, name in enumerate(packs.dictionary.to_pylist())
        }

    @classmethod
    def read(cls, root: Place, marker: Mapping[str, Any]) -> Self:
        """The table that ``marker``, of ``raw`` or of ``normalized``, names.

        Raises DataError if it is damaged or has another number of rows.
        """
        recorded = marker["removed"]
        if recorded is None:
            return cls(schemas.REMOVED.empty_table())
        place, rows = root / "raw" / recorded["file"], recorded["rows"]
        table = parquet_tables.read_table(place, ["pack", "key"])
        if table.num_rows != rows:
            raise DataError(f"{place} has {table.num_rows} rows, {rows} were written; ingest with --overwrite")
        return cls(table)

    def number(self, pack: str) -> int:
        """The number of removed rows of a pack."""
        return len(self._keys.get(pack, ()))

    def live(self, pack: str, keys: pa.Array | pa.ChunkedArray) -> Mask:
        """Whether the image of each of these keys, of rows of one pack or its part, is live: bool of shape (rows,)."""
        if pack not in self._keys:
            return np.ones(len(keys), dtype=np.bool_)
        import pyarrow.compute as pc  # a quarter of what a task takes to start, which needs none of it

        return ~np.asarray(pc.is_in(keys, value_set=self._keys[pack]))

    def filter(self, pack: str, rows: pa.Table) -> pa.Table:
        """Those ``rows`` (column key), of one pack or its part, whose images are live."""
        return rows.filter(pa.array(self.live(pack, rows["key"]))) if pack in self._keys else rows


def publish_removed(raw: Place, staging: Place, table: pa.Table) -> dict[str, Any] | None:
    """Publish a table of removed rows (`etl.formats.schemas.REMOVED`), named by its content; returns its entry for
    markers, None if it is empty."""
    if not table.num_rows:
        return None
    data = parquet_tables.table_bytes(table)
    sha256 = fingerprint_of(data)
    file = f"{REMOVED_FOLDER}/{sha256[:16]}.parquet"
    publish_bytes(raw / file, staging, data)
    return {"file": file, "rows": table.num_rows, "sha256": sha256}

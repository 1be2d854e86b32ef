"""What is known of the times of change of a source's files, so that only those written again are looked into.

``raw/versions.parquet`` gives the version of each image whose content is known to be that of its pack. It is advice:
not part of the marker, replaced by every ingest, and where it is missing or damaged all contents are compared once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.sources import SourceImage
from etl.stages.stage import Stage

VERSIONS_FILE = "versions.parquet"


@dataclass(frozen=True)
class Versions:
    """Whether the file of each image has the version still that is known: bool of shape (images,).

    It holds for images in ``packs``.
    """

    packs: frozenset[str]
    same: npt.NDArray[np.bool_]

    @classmethod
    def read(cls, stage: Stage, images: Sequence[SourceImage]) -> Self:
        """What is known of these images."""
        place = stage.folder / VERSIONS_FILE
        try:
            facts, table = parquet_tables.read_facts(place), parquet_tables.read_table(place, ["key", "version"])
        except (DataError, FileNotFoundError):
            return cls(frozenset(), np.zeros(len(images), dtype=np.bool_))
        marker = stage.find_generation(facts["generation"])
        packs = frozenset(pack["name"] for pack in marker["packs"]) if marker else frozenset()
        rows = pc.index_in(pa.array([image.key for image in images], pa.string()), value_set=table["key"])
        known = pc.take(table["version"].combine_chunks(), rows)
        same = pc.equal(known, pa.array([image.version for image in images], pa.int64())).fill_null(False)
        return cls(packs, same.to_numpy(zero_copy_only=False))


def are_known(stage: Stage, listing: str, generation: str) -> bool:
    """Whether nothing was written again in a source of this listing since it was held against this generation."""
    try:
        facts = parquet_tables.read_facts(stage.folder / VERSIONS_FILE)
    except (DataError, FileNotFoundError):
        return False
    return facts == {"listing": listing, "generation": generation}


def versions_bytes(images: Sequence[SourceImage], listing: str, generation: str) -> bytes:
    """The file that says that every image of the source is packed as it is now."""
    columns = {
        "key": pa.array([image.key for image in images], pa.string()),
        "version": pa.array([image.version for image in images], pa.int64()),
    }
    return parquet_tables.table_bytes(pa.table(columns), {"listing": listing, "generation": generation})

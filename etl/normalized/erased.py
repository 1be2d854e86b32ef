"""What `ringslice erase` has erased: ``ROOT/erased``.

``images.parquet`` has keys and SHA-256, by which an erasure that was stopped goes on. It is written before anything is
changed, and stays: slices that still have the images are found by it when the packs are gone. ``keys.txt`` has the
keys of the last erasure and those of copies, for ``shard --remove``. ``generations.json`` has the configurations of
generations of ``normalized`` that were deleted, by fingerprint: slices that have none of the images stay, and how
theirs were normalised is known.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from etl.formats import parquet_tables, schemas
from etl.stages.layout import erasure_stage
from etl.stages.marker import Generation
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place, json_bytes

Row = tuple[str, bytes]  # key, SHA-256


def erased_config(root: Place, fingerprint: str) -> dict[str, Any] | None:
    """The configuration of a generation that was deleted; None if it was not."""
    _, known = _read_generations(root)
    config = known.get(fingerprint)
    return config if isinstance(config, dict) else None


def read_record(root: Place) -> pa.Table:
    """All that was ever erased below ``root``: `schemas.ERASED`."""
    place = erasure_stage(root).marker
    return parquet_tables.read_table(place) if place.exists() else schemas.ERASED.empty_table()


def record_images(root: Place, staging: Place, rows: frozenset[Row]) -> None:
    """Record ``rows`` with those that are recorded; their keys alone are those of the last erasure."""
    keys = sorted({key for key, _ in rows})
    replace_bytes(keys_file(root), staging, "".join(f"{key}\n" for key in keys).encode())
    table = read_record(root)
    known = set(zip(table["key"].to_pylist(), table["sha256"].to_pylist(), strict=True))
    if not rows <= known:
        recorded = [{"key": key, "sha256": sha256} for key, sha256 in sorted(known | rows)]
        data = parquet_tables.table_bytes(parquet_tables.table_of(schemas.ERASED, recorded))
        replace_bytes(erasure_stage(root).marker, staging, data)


def keys_file(root: Place) -> Place:
    """The keys of the last erasure, one per line."""
    return erasure_stage(root).folder / "keys.txt"


def record_generations(root: Place, staging: Place, gone: Iterable[Generation]) -> None:
    """Record generations that are about to be deleted."""
    file, known = _read_generations(root)
    recorded = known | {each.fingerprint: each.marker["config"] for each in gone}
    if recorded != known:
        replace_bytes(file, staging, json_bytes(dict(sorted(recorded.items()))))


def _read_generations(root: Place) -> tuple[Place, dict[str, Any]]:
    """The file of generations that were deleted, and what is in it."""
    file = erasure_stage(root).folder / "generations.json"
    return file, file.read_json() if file.exists() else {}

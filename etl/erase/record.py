"""What was erased: ``ROOT/erased/images.parquet``, keys and SHA-256, by which an erasure that was stopped goes on.

It is written before anything is changed, and stays: slices that are made anew on a later day need it, for by then the
packs, which told which keys have the same content, are gone.
"""

from etl.formats import parquet_tables, schemas
from etl.normalized.erased import read_record
from etl.stages.layout import erasure_stage
from etl.storage.atomic import replace_bytes
from etl.storage.place import Place

Row = tuple[str, bytes]  # key, SHA-256


def add_to_record(root: Place, attempts: Place, rows: frozenset[Row]) -> None:
    """Remember ``rows`` besides those that are remembered."""
    table = read_record(root)
    known = set(zip(table["key"].to_pylist(), table["sha256"].to_pylist(), strict=True))
    if rows <= known:
        return
    told = [{"key": key, "sha256": sha256} for key, sha256 in sorted(known | rows)]
    data = parquet_tables.table_bytes(parquet_tables.table_of(schemas.ERASED, told))
    replace_bytes(erasure_stage(root).marker, attempts, data)

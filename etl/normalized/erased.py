"""What `ringslice erase` has erased, and the generations of ``normalized`` that it has deleted.

Slices that hold none of the images stay, and it is known how theirs were normalised: ``ROOT/erased/generations.json``
has the configuration by fingerprint.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from etl.formats import parquet_tables, schemas
from etl.stages.layout import ERASED_FOLDER, erasure_stage
from etl.stages.marker import Generation
from etl.storage.atomic import replace_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place

GENERATIONS_FILE = "generations.json"


def erased_config(root: Place, fingerprint: str) -> dict[str, Any] | None:
    """The configuration of a generation that was deleted; None where it was not."""
    config = _read(root).get(fingerprint)
    return config if isinstance(config, dict) else None


def read_record(root: Place) -> pa.Table:
    """All that was ever erased below ``root``: `schemas.ERASED`."""
    place = erasure_stage(root).marker
    return parquet_tables.read_table(place) if place.exists() else schemas.ERASED.empty_table()


def remember_generations(root: Place, attempts: Place, gone: Iterable[Generation]) -> None:
    """Remember generations that are about to be deleted."""
    known = _read(root)
    told = known | {each.fingerprint: each.marker["config"] for each in gone}
    if told != known:
        replace_bytes(_place(root), attempts, json_bytes(dict(sorted(told.items()))))


def _read(root: Place) -> dict[str, Any]:
    return _place(root).read_json() if _place(root).exists() else {}


def _place(root: Place) -> Place:
    return root / ERASED_FOLDER / GENERATIONS_FILE

"""Whether a marker has the fields, of the types, that its schema tells of: what every other check takes for granted."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etl.errors import DataError
from etl.formats.json_schema import schema_fault
from etl.storage.place import Place

_ETL = Path(__file__).parents[1]
RAW_SCHEMA, NORMALIZED_SCHEMA, SLICES_SCHEMA = (
    _ETL / package / "schemas" / file
    for package, file in (("raw", "dataset.json"), ("normalized", "dataset.json"), ("slices", "manifest.json"))
)


def require_shape(marker: Mapping[str, Any], schema: Path, place: Place) -> None:
    """Raise DataError where ``marker``, read from ``place``, is not as the JSON Schema in ``schema`` has it."""
    if fault := schema_fault(marker, json.loads(schema.read_text())):
        raise DataError(f"{place} was edited or damaged: {fault}; put the original back")

"""Where an example came from: its record in the part, and the source image in the pack."""

from typing import Any

import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.normalized.parts import pack_of, records_place, rows_place
from etl.raw.packs import list_place, pack_place
from etl.storage.place import Place


def trace(root: Place, part: str, key: str, sha256: bytes | None) -> dict[str, Any]:
    """The facts of the image ``key`` in the part's rows and the pack's image list, by name.

    ``sha256`` is that of the source image, if the caller knows it: rows of another image under the same key do not
    count. The reason why something is missing is ``unknown``.
    """
    normalized = root / "normalized"
    found: dict[str, Any] = {}
    try:
        rows = rows_place(normalized, part)
        number, row = _row_of(rows, key, sha256)
        place = records_place(normalized, part)
        found["part"] = {"file": place.uri, "record": number, "offset": row["offset"], "size": row["size"]}
        source = {name: row[f"source_{name}"] for name in ("format", "width", "height")}
        found["image"] = {
            "sha256": row["sha256"].hex(),
            **source,
            "split": row["split"],
            "columns": dict(row.get("columns") or ()),
        }
        facts = parquet_tables.read_facts(rows)
        found["pack"] = _in_pack(root / "raw", pack_of(facts), facts.get("file"), key, row["sha256"])
    except DataError as error:
        found["unknown"] = str(error)
    return found


def _in_pack(raw: Place, pack: str, file: str | None, key: str, sha256: bytes) -> dict[str, Any]:
    """Position in the pack: an offset and a size, or the column and the row of a Parquet file left in place."""
    listed = list_place(raw, pack)
    number, image = _row_of(listed, key, sha256)
    facts = {"file": pack_place(raw, pack, file).uri}
    if file is None:
        return facts | {"member": number, "offset": image["offset"], "size": image["size"]}
    if column := parquet_tables.read_facts(listed).get("column"):
        return facts | {"column": column, "row": image["offset"], "size": image["size"]}
    return facts | {"offset": image["offset"], "size": image["size"]}


def _row_of(place: Place, key: str, sha256: bytes | None) -> tuple[int, dict[str, Any]]:
    """Number and content of the row of ``key``. Raises DataError if there is none."""
    try:
        rows = parquet_tables.read_table(place)
    except FileNotFoundError:
        raise DataError(f"{place} is not there any more") from None
    number = pc.index(rows["key"], key).as_py()
    if number < 0:
        raise DataError(f"{place} has no row of {key}")
    row: dict[str, Any] = rows.slice(number, 1).to_pylist()[0]
    if sha256 is not None and row["sha256"] != sha256:
        raise DataError(f"{place} has another image called {key}")
    return number, row

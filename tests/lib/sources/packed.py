"""What `ringslice ingest` packed, read back from tar files and image lists alone."""

import hashlib
import json
import tarfile
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow.parquet as pq

from etl.storage.place import Place
from tests.lib.generations import packs_of


@dataclass(frozen=True)
class Packed:
    """An image of a pack: its bytes, the name of its class, its split and its further columns."""

    data: bytes
    name: str
    split: str | None
    columns: dict[str, str]


def packed_images(root: Place) -> dict[str, Packed]:
    """The live images of all packs, by key, each compared with its SHA-256 and its member of the tar."""
    marker = json.loads((root / "raw" / "dataset.json").read_bytes())
    removed = set()
    if marker["removed"]:
        table = pq.read_table(BytesIO((root / "raw" / marker["removed"]["file"]).read_bytes()))
        removed = {(row["pack"], row["key"]) for row in table.to_pylist()}
    found: dict[str, Packed] = {}
    for pack in packs_of(root):
        data = (root / "raw" / "packs" / f"{pack['name']}.tar").read_bytes()
        listed = BytesIO((root / "raw" / "packs" / f"{pack['name']}.parquet").read_bytes())
        rows: list[dict[str, Any]] = pq.read_table(listed).to_pylist()
        with tarfile.open(fileobj=BytesIO(data)) as archive:
            members = [(member.name, member.offset_data, member.size) for member in archive]
        assert members == [(row["key"], row["offset"], row["size"]) for row in rows]
        for row in rows:
            if (pack["name"], row["key"]) in removed:
                continue
            content = data[row["offset"] : row["offset"] + row["size"]]
            assert hashlib.sha256(content).digest() == row["sha256"]
            assert row["key"] not in found
            name, columns = marker["classes"][row["label"]], dict(row["columns"] or ())
            found[row["key"]] = Packed(content, name, row["split"], columns)
    return found

"""Parquet files with images as Hugging Face `datasets` writes them, on any root."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etl.storage.place import Place

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAMES = ["cat", "dog", "owl"]


def some_bytes(number: int, seed: int = 0) -> bytes:
    """What stands for an image: sources look at no pixel. Of 1 to 300 bytes."""
    generator = np.random.default_rng((seed, number))
    return generator.bytes(int(generator.integers(1, 301)))


def image_column(contents: Sequence[bytes | None]) -> pa.Array:
    """As `datasets` has it: bytes, and the name of the file that they were."""
    return pa.array([{"bytes": data, "path": f"{number}.png"} for number, data in enumerate(contents)], IMAGE)


def class_label(names: Any, column: str = "label") -> dict[str, str]:
    """The metadata of a schema that name the classes of a column; `datasets` 5 writes exactly this."""
    features = {"image": {"_type": "Image"}, column: {"names": names, "_type": "ClassLabel"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def image_table(count: int, first: int = 0, names: Any = NAMES, **columns: Any) -> pa.Table:
    """``count`` rows, labels going round through the numbers of ``names``; images by number from ``first``."""
    rows = range(first, first + count)
    labels = pa.array([row % 3 for row in rows], pa.int64())
    table = pa.table({"image": image_column([some_bytes(row) for row in rows]), "label": labels, **columns})
    return table.replace_schema_metadata(class_label(names) if names else None)


def write_parquet(place: Place, table: pa.Table, **options: Any) -> Place:
    """The file, in a folder that is made for it."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return write_file(place, sink.getvalue().to_pybytes())


def write_file(place: Place, data: bytes) -> Place:
    """A file with this content, in a folder that is made for it; in place of another."""
    place.parent.make_folder()
    place.delete()
    with place.filesystem.open_new(place.path) as output:
        output.write(data)
    return place

"""Compare one slice with all that is recorded of it: its entry in the manifest, its index, its rows in the tables.

A slice whose bytes have the SHA-256 of the manifest is right, and what differs from it is wrong; a slice with
another SHA-256 is wrong itself. So each finding names the file that is to be put right.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from etl.errors import DataError
from etl.slices.manifest import table_file
from etl.slices.writer import SliceScan, index_of, order_key, scan_slice
from etl.storage.place import Place, open_place
from etl.verify.findings import MANIFEST_FILE, What, table_difference
from etl.verify.result import LineResult

NOT_IN_RECORDS = ("source", "sha256")  # columns of the table of examples that only the parts have

Entry = Mapping[str, Any]


def check_slice(
    result: LineResult, job: Mapping[str, Any], entry: Entry, rows: pa.Table | None, blocks: pa.Table | None
) -> pa.Table | None:
    """Compare a slice with its ``entry`` in the manifest and its split, its index, and its part of both tables.

    A table that cannot be read is None. Findings go to ``result``, and the facts of the slice: of a damaged one those
    recorded, with its labels by the table. Returns the rows of its examples, as the slice has them, or the table if the
    slice is damaged; None if neither can tell. Columns ``source`` and ``sha256`` are null unless the table agrees.
    """
    folder, name = open_place(job["folder"]), entry["name"]
    place, index = folder / f"{name}.tfrecord", folder / f"{name}.idx"
    examples, facts = rows, None
    try:
        scan, sha256 = scan_slice(folder, entry["split"], name)
        result.counts["bytes"] += scan.size_bytes
        if (sha256, scan.size_bytes) != (entry["sha256"], entry["bytes"]):
            raise DataError(f"{place} has another SHA-256 than the one recorded")
    except (DataError, FileNotFoundError) as error:
        result.find_error(What.SLICE, name, place, error)
        if rows is not None:
            by_label = sorted(Counter(rows["label"].to_pylist()).items())
            facts = {**entry, "by_label": {str(label): number for label, number in by_label}}
    else:
        facts, found = scan.facts(sha256), scan.rows()
        if line := _misfit(scan, found["key"].to_pylist(), job):
            result.find(What.MANIFEST, MANIFEST_FILE, f"{place}: {line}")
        _compare(result, name, "blocks", scan.blocks(), blocks)
        is_same = _compare(result, name, "examples", found, rows)
        examples = rows if is_same else found
    result.slices.append(facts)
    if examples is not None:
        _check_index(result, name, index, index_of(examples))
    return examples


def _misfit(scan: SliceScan, keys: list[str], job: Mapping[str, Any]) -> str | None:
    """The first fault of the examples against what the manifest records of all: the class of each label, the image's
    size, channels and format (null if they differ), and the seed of their order.
    """
    for kind, key in scan.kinds.items():
        due = {name: value for name, value in job["image"].items() if hasattr(kind, name) and value is not None}
        due["text"] = job["classes"][kind.label] if 0 <= kind.label < len(job["classes"]) else None
        for name, value in due.items():
            if getattr(kind, name) != value:
                return f"{key}: {name} is {getattr(kind, name)}, not {value} as in the manifest"
    orders = [order_key(key, job["seed"]) for key in keys]
    late = (key for key, order, before in zip(keys[1:], orders[1:], orders, strict=False) if order < before)
    return next((f"{key} is not in the order of the manifest's seed {job['seed']}" for key in late), None)


def _compare(result: LineResult, name: str, table: str, expected: pa.Table, recorded: pa.Table | None) -> bool:
    """Whether the rows of a table beside the manifest are there, and right; if they are wrong, that is a finding."""
    if recorded is None:
        return False
    compared = [column for column in expected.column_names if column not in NOT_IN_RECORDS]
    line = table_difference(expected.select(compared), recorded.select(compared))
    if line:
        result.find(What.TABLE, table_file(table), f"{table_file(table)}, rows of {name}: {line}")
    return line is None


def _check_index(result: LineResult, name: str, index: Place, expected: bytes) -> None:
    try:
        if index.read_bytes() != expected:
            raise DataError(f"{index} does not fit its slice")
    except (DataError, FileNotFoundError) as error:
        result.find_error(What.INDEX, name, index, error)

"""What a task of a verification does: check one line of the list of work.

A slice whose bytes have the SHA-256 of the manifest is right, and what differs from it is wrong; a slice with another
SHA-256 is wrong itself. So each finding names the file that is to be put right.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from etl.errors import DataError
from etl.partition.shares import SlicePlan
from etl.raw.packs import RemovedRows
from etl.slices.images import groups_of
from etl.slices.manifest import TABLES, table_file
from etl.slices.plan import assign_rows
from etl.slices.writer import SliceScan, index_of, order_key, scan_slice
from etl.storage.place import Place, open_place
from etl.verify.check_part import PartCheck
from etl.verify.findings import MANIFEST_FILE, What, table_difference
from etl.verify.join import CONTENTS, LineResult
from etl.verify.target import FILES, PARTS, SLICES

NOT_IN_RECORDS = ("source", "sha256")  # columns of the table of examples that only the parts have

Entry = Mapping[str, Any]
Job = Mapping[str, Any]  # what the driver wrote for all tasks, see `Target.job`


def check_line(job: Job, line: Mapping[str, Any]) -> LineResult:
    """Check slices, parts or files."""
    result = LineResult()
    checks = {SLICES: _check_slices, PARTS: _check_parts, FILES: _check_files}
    checks[line["kind"]](result, job, line)
    return result


def _check_slices(result: LineResult, job: Job, line: Mapping[str, Any]) -> None:
    folder = open_place(job["folder"])
    for entry in line["items"]:
        tables = []
        for name, first, rows in (("examples", "row", "records"), ("blocks", "block", "blocks")):
            file, span = table_file(name), (entry[first], entry[first] + entry[rows])
            tables.append(result.read(What.TABLE, file, folder / file, TABLES[name], span))
        found = check_slice(result, job, entry, *tables)
        result.counts["slices"] += 1
        if found is None:
            result.unreadable["slices"] += 1
            continue
        result.counts["examples"] += found.num_rows
        found = found.append_column("number", pa.repeat(entry["number"], found.num_rows))
        result.keep("found", found)
        result.keep(CONTENTS, found.filter(found["sha256"].is_valid()))


def _check_parts(result: LineResult, job: Job, line: Mapping[str, Any]) -> None:
    root = open_place(job["root"])
    try:
        removed = RemovedRows.read(root, job)
    except (DataError, FileNotFoundError) as error:
        result.find(What.REMOVED, job["removed"]["file"], str(error))
        result.unreadable.update(parts=len(line["items"]), lists=1)
        return
    for part in line["items"]:
        check = PartCheck(result, root, part["entry"], part["pack"], removed, job["normalized_image"])
        rows = check.check(job["every_stage"])
        if rows is None:
            result.unreadable["parts"] += 1
            continue
        rows = rows.append_column("part", pa.repeat(check.name, rows.num_rows))
        rows = rows.append_column("planned", _plan_slices(job, part, rows))
        rows = rows.append_column("group", groups_of(rows, job["group_by"]))
        live = check.live(rows)
        result.counts.update(parts=1, good=live.num_rows)
        result.keep("good", live)


def _plan_slices(job: Job, part: Mapping[str, Any], rows: pa.Table) -> pa.Array:
    """The slice of each row by the plan, -1 if it is left out; null if there is no plan, or none for these rows."""
    if job["plan"] is not None:
        assignments = open_place(job["assignments"]) if job["assignments"] else None
        with suppress(ValueError, IndexError, KeyError, DataError):
            return pa.array(assign_rows(SlicePlan.from_json(job["plan"]), rows, part["plan"], assignments)[1])
    return pa.nulls(rows.num_rows, pa.int64())


def _check_files(result: LineResult, job: Job, line: Mapping[str, Any]) -> None:
    for each in line["items"]:
        result.require_sha256(each["what"], each["name"], open_place(each["uri"]), each["sha256"])


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
    """True if the rows of a table beside the manifest are there, and right; if they are wrong, that is a finding."""
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

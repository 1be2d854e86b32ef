"""What a task of a verification does: check one line of the list of work."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.partition.shares import SlicePlan
from etl.raw.removed import Removed
from etl.slices.manifest import TABLES, table_file
from etl.slices.plan import assign_rows
from etl.storage.place import open_place
from etl.verify.check_part import PartCheck
from etl.verify.check_slice import check_slice
from etl.verify.findings import What
from etl.verify.join import CONTENTS
from etl.verify.result import LineResult
from etl.verify.target import FILES, PARTS, SLICES

Job = Mapping[str, Any]  # what the driver wrote for all tasks, see `Target.job`


def check_line(job: Job, line: Mapping[str, Any]) -> LineResult:
    """Check slices, parts or files."""
    result = LineResult()
    checks = {SLICES: _check_slices, PARTS: _check_parts, FILES: _check_files}
    checks[line["kind"]](result, job, line)
    return result


def _check_slices(result: LineResult, job: Job, line: Mapping[str, Any]) -> None:
    folder, first = open_place(job["folder"]), {"examples": line["row"], "blocks": line["block"]}
    for number, entry in enumerate(line["items"], start=line["number"]):
        tables = {}
        for name, rows in (("examples", entry["records"]), ("blocks", entry["blocks"])):
            file, span = table_file(name), (first[name], first[name] + rows)
            tables[name] = result.read(What.TABLE, file, folder / file, TABLES[name], span)
            first[name] += rows
        found = check_slice(result, job, entry, tables["examples"], tables["blocks"])
        result.counts["slices"] += 1
        if found is None:
            result.unreadable["slices"] += 1
            continue
        result.counts["examples"] += found.num_rows
        found = found.append_column("number", pa.repeat(number, found.num_rows))
        result.keep("found", found)
        result.keep(CONTENTS, found.filter(found["sha256"].is_valid()))


def _check_parts(result: LineResult, job: Job, line: Mapping[str, Any]) -> None:
    root = open_place(job["root"])
    try:
        removed = Removed.read(root, job)
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
        rows = rows.append_column("planned", _plan_slices(job, part, rows)).append_column(
            "group", _groups_of(job, rows)
        )
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


def _groups_of(job: Job, rows: pa.Table) -> pa.ChunkedArray | pa.Array:
    if job["group_by"] is None:
        return pa.nulls(rows.num_rows, pa.string())
    return pc.map_lookup(rows["columns"], pa.scalar(job["group_by"]), "first")


def _check_files(result: LineResult, job: Job, line: Mapping[str, Any]) -> None:
    for each in line["items"]:
        result.require_sha256(each["what"], each["name"], open_place(each["uri"]), each["sha256"])

"""What a task of a verification does: check one line of the list of work, and say what is to be judged across lines."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.normalized.parts import pack_of, rejects_places, rows_place
from etl.partition.shares import SlicePlan
from etl.raw.packs import list_place
from etl.raw.removed import Removed
from etl.slices.manifest import TABLES as SLICE_TABLES
from etl.slices.manifest import table_file
from etl.slices.plan import assign_rows
from etl.storage.atomic import publish_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place, open_place
from etl.verify.check_part import RECORD_COLUMNS, PartCheck, images_fault, records_fault, table_fault
from etl.verify.check_slice import ExampleCheck, check_slice
from etl.verify.findings import INPUT, LISTED, PACK, PART, REJECTS, REMOVED, ROWS, TABLE, Finding
from etl.verify.join import CONTENTS, TABLES, content_buckets, key_buckets, write_buckets
from etl.verify.work_list import FILES, PARTS, SLICES

Part = Mapping[str, Any]


def task_place(results: Place, line: int) -> Place:
    """What a line of work found."""
    return results / f"line-{line:06d}.json"


def table_place(results: Place, name: str, line: int) -> Place:
    """What a line of work found, by bucket: of the schema `TABLES` has for ``name``."""
    return results / f"{name}-{line:06d}.parquet"


@dataclass
class TaskCheck:
    """Checks lines of work; ``job`` is what the driver wrote for all of them. The other attributes have the result.

    ``unreadable`` counts what is not known: slices, parts, lists. ``slices`` are the facts of slices, ``live`` counts
    the live images of packs: ``images``, ``bytes``, and by class and by split. ``tables`` has what is compared across
    lines, by the names of `etl.verify.join.TABLES`.
    """

    job: Mapping[str, Any]
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    slices: list[dict[str, Any] | None] = field(default_factory=list)
    live: Counter[str] = field(default_factory=Counter)
    tables: dict[str, list[pa.Table]] = field(default_factory=dict)

    def check(self, work: Mapping[str, Any]) -> None:
        kinds = {SLICES: self._check_slices, PARTS: self._check_parts, FILES: self._check_files}
        kinds[work["kind"]](work)

    def publish(self, results: Place, attempts: Place, line: int) -> None:
        """Publish the tables, then the rest, as of this line of work."""
        rows, buckets = {}, self.job["buckets"]
        for name, tables in self.tables.items():
            table = pa.concat_tables(tables).combine_chunks()
            numbers = (content_buckets if name == CONTENTS else key_buckets)(table, buckets)
            rows[name] = write_buckets(table_place(results, name, line), attempts, table, numbers, buckets)
        result = {name: getattr(self, name) for name in ("counts", "unreadable", "slices", "live")}
        result |= {"findings": [vars(each) for each in self.findings], "rows": rows}
        publish_bytes(task_place(results, line), attempts, json_bytes(result))

    def _keep(self, name: str, table: pa.Table) -> None:
        schema = TABLES[name]
        self.tables.setdefault(name, []).append(table.select(schema.names).cast(schema))

    @property
    def _folder(self) -> Place:
        return open_place(self.job["folder"])

    def _check_slices(self, work: Mapping[str, Any]) -> None:
        row, block = work["row"], work["block"]
        for number, entry in enumerate(work["slices"], start=work["number"]):
            rows = self._rows_of("examples", row, entry["records"])
            blocks = self._rows_of("blocks", block, entry["blocks"])
            row, block = row + entry["records"], block + entry["blocks"]
            examples = ExampleCheck(self.job["classes"], self.job["image"], self.job["seed"])
            check = check_slice(self._folder, entry, rows, blocks, examples)
            self.findings += check.findings
            self.slices.append(check.facts)
            self.counts.update(slices=1, bytes=check.size_bytes)
            if check.examples is None:
                self.unreadable["slices"] += 1
                continue
            self.counts["examples"] += check.examples.num_rows
            numbers = pa.array([number] * check.examples.num_rows, pa.int64())
            found = check.examples.append_column("number", numbers)
            self._keep("found", found)
            self._keep(CONTENTS, found.filter(found["sha256"].is_valid()))

    def _rows_of(self, table: str, first: int, rows: int) -> pa.Table | None:
        """Rows of a table beside the manifest; None, and a finding, if they cannot be read."""
        file = table_file(table)
        return self._read(TABLE, file, SLICE_TABLES[table], self._folder / file, (first, first + rows))

    def _read(
        self, what: str, name: str, schema: pa.Schema, place: Place, rows: tuple[int, int] | None = None
    ) -> pa.Table | None:
        """A table, or these rows of it; None, and a finding, if it cannot be read, or is not of this schema."""
        try:
            table = parquet_tables.read_range(place, *rows) if rows else parquet_tables.read_table(place)
            if why := table_fault(table, schema):
                raise DataError(f"{place} {why}")
            return table
        except (DataError, FileNotFoundError, pa.ArrowException) as error:
            is_missing = isinstance(error, FileNotFoundError)
            self._find(what, name, f"{place} is missing" if is_missing else str(error).splitlines()[0])
            return None

    def _check_parts(self, work: Mapping[str, Any]) -> None:
        root = open_place(self.job["root"])
        try:
            removed = Removed.read(root, self.job)
        except (DataError, FileNotFoundError) as error:
            self._find(REMOVED, self.job["removed"]["file"], str(error))
            self.unreadable.update(parts=len(work["parts"]), lists=1)
            return
        plan = SlicePlan.from_json(self.job["plan"]) if self.job["plan"] else None
        for part in work["parts"]:
            rows = self._rows(root, part, removed, plan)
            if rows is None:
                self.unreadable["parts"] += 1
                continue
            self.counts.update(parts=1, good=rows.num_rows)
            name = pa.array([part["entry"]["part"]] * rows.num_rows, pa.string())
            self._keep("good", rows.append_column("part", name).append_column("group", self._groups(rows)))

    def _rows(self, root: Place, part: Part, removed: Removed, plan: SlicePlan | None) -> pa.Table | None:
        """The live rows of a part, after they and its rejects were compared with its pack's list; None if in doubt.

        A column ``planned`` has the slice of each by number, -1 if it is left out.
        """
        entry, pack = part["entry"], pack_of(part["entry"])
        name, rejects = entry["part"], entry["rejects"]
        images = self._table(LISTED, pack, list_place(root / "raw", pack), entry["list_sha256"])
        good = self._table(ROWS, name, rows_place(root / "normalized", name), entry["rows_sha256"])
        bad: pa.Table | None = schemas.REJECTS.empty_table()
        if "list_sha256" in rejects:
            bad = self._table(REJECTS, name, rejects_places(root / "normalized", name)[1], rejects["list_sha256"])
        check = PartCheck(entry, part["pack"], removed, self.job["normalized_image"])
        self.unreadable.update(lists=images is None, rejects=bad is None)
        if images is not None:
            self.findings += check.list_findings(images)
            self._count_images(check.live(images))
        if good is None or bad is None:
            return None
        if fault := check.row_fault(images, good, bad):
            self.findings.append(fault)
            return None
        self.findings += check.entry_findings(good, bad)
        self.counts["rejects"] += check.live(bad).num_rows
        return check.live(self._planned(part, good, plan))

    def _planned(self, part: Part, rows: pa.Table, plan: SlicePlan | None) -> pa.Table:
        """The rows with the slice of each; null if there is no plan, or if these are not the rows that were planned."""
        slices: pa.Array = pa.nulls(rows.num_rows, pa.int64())
        if plan is not None:
            assignments = open_place(self.job["assignments"]) if self.job["assignments"] else None
            with suppress(ValueError, IndexError, KeyError, DataError):
                slices = pa.array(assign_rows(plan, rows, part["plan"], assignments)[1])
        return rows.append_column("planned", slices)

    def _count_images(self, live: pa.Table) -> None:
        counts = {"images": live.num_rows, "bytes": sum(live["size"].to_pylist())}
        counts |= {f"class {label}": number for label, number in _counted(live["label"])}
        counts |= {f"split {split}": number for split, number in _counted(live["split"]) if split is not None}
        self.live.update(counts)

    def _groups(self, rows: pa.Table) -> pa.ChunkedArray | pa.Array:
        if self.job["group_by"] is None:
            return pa.nulls(rows.num_rows, pa.string())
        return pc.map_lookup(rows["columns"], pa.scalar(self.job["group_by"]), "first")

    def _table(self, what: str, name: str, place: Place, sha256: str) -> pa.Table | None:
        """A table; None, and a finding, if it is not the one that was written, or not of its schema."""
        self.counts["files"] += what != ROWS
        if line := hash_fault(place, sha256):
            self._find(what, name, line)
            return None
        self.counts["other_bytes"] += place.info().size if what != ROWS else 0
        schema = {LISTED: schemas.IMAGES, ROWS: schemas.ROWS, REJECTS: schemas.REJECTS}[what]
        return self._read(LISTED if what == LISTED else INPUT, name, schema, place)

    def _find(self, what: str, name: str, line: str) -> None:
        if (finding := Finding(what, name, line)) not in self.findings:
            self.findings.append(finding)

    def _check_files(self, work: Mapping[str, Any]) -> None:
        for each in work["files"]:
            place = open_place(each["uri"])
            if line := hash_fault(place, each["sha256"]):
                self._find(each["what"], each["name"], line)
            else:
                self.counts["other_bytes"] += place.info().size
                self.findings += self._inside(place, each)
            self.counts["files"] += 1

    def _inside(self, place: Place, entry: Mapping[str, Any]) -> Iterator[Finding]:
        """Whether a part has the records of its rows, and a pack or a tar file of rejects the images of its list.

        If rows or a list are damaged, that is found with their part.
        """
        root, what, name = open_place(self.job["root"]), entry["what"], entry["name"]
        line = None
        try:
            if what == PART:
                rows = parquet_tables.read_table(rows_place(root / "normalized", name), [*RECORD_COLUMNS])
                line = records_fault(place, rows)
            elif what in (PACK, REJECTS):
                listed = (
                    list_place(root / "raw", name) if what == PACK else rejects_places(root / "normalized", name)[1]
                )
                images = parquet_tables.read_table(listed)
                is_whole = table_fault(images, schemas.IMAGES if what == PACK else schemas.REJECTS) is None
                line = images_fault(place, images) if is_whole else None
        except (DataError, FileNotFoundError):
            return
        if line is not None:
            yield Finding(LISTED if what == PACK else INPUT, name, line)


def _counted(column: pa.ChunkedArray) -> Iterator[tuple[Any, int]]:
    return ((each["values"], each["counts"]) for each in column.value_counts().to_pylist())


def hash_fault(place: Place, sha256: str) -> str | None:
    """Why a file is not the one with this SHA-256, if so."""
    try:
        return None if place.sha256() == sha256 else f"{place} has another SHA-256 than the one recorded"
    except FileNotFoundError:
        return f"{place} is missing"

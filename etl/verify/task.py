"""What a task of a verification does: check one line of the list of work, and say what is to be judged across lines."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.normalized.parts import pack_of, rejects_places, rows_place
from etl.partition.strata import Dealing
from etl.raw.packs import list_place
from etl.raw.removed import Removed
from etl.slices.manifest import BLOCKS_FILE, DEPARTED_FILE, EXAMPLES_FILE
from etl.slices.memory import removed_keys
from etl.slices.plan import deal_rows, dealing_of
from etl.storage.place import Place, open_place
from etl.verify.check_part import RECORD_COLUMNS, PartCheck, images_fault, records_fault, table_fault
from etl.verify.check_slice import Rules, check_slice
from etl.verify.findings import INPUT, LISTED, PACK, PART, REJECTS, REMOVED, ROWS, TABLE, Finding
from etl.verify.lines import Line, PartOrder, dealt_lines, earlier_lines, gone_lines, good_lines
from etl.verify.work_list import DEPARTED, EARLIER, FILES, PARTS, SLICES

Part = Mapping[str, Any]
PLANNED = "planned"


@dataclass
class TaskResult:
    """What became of one line of work.

    ``unreadable`` counts what is not known: slices, parts, lists. ``slices`` are the facts of slices, ``live`` counts
    the live images of packs: ``images``, ``bytes``, and by class and by split.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    slices: list[dict[str, Any] | None] = field(default_factory=list)
    live: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"findings": [each.to_json() for each in self.findings]}


@dataclass
class TaskCheck:
    """Checks one line; ``job`` is what the driver wrote for all of them. ``result`` holds once all lines were taken."""

    job: Mapping[str, Any]
    result: TaskResult = field(default_factory=TaskResult)

    def lines(self, work: Mapping[str, Any]) -> Iterator[Line]:
        """What is to be judged across lines."""
        kinds = {SLICES: self._slices, PARTS: self._parts, FILES: self._files}
        kinds |= {DEPARTED: self._departed, EARLIER: self._earlier}
        return kinds[work["kind"]](work)

    @property
    def _folder(self) -> Place:
        return open_place(self.job["folder"])

    def _slices(self, work: Mapping[str, Any]) -> Iterator[Line]:
        row, block = work["row"], work["block"]
        rules = Rules(self.job["classes"], self.job["image"], self.job["seed"])
        for number, told in enumerate(work["slices"], start=work["number"]):
            rows = self._range(EXAMPLES_FILE, schemas.EXAMPLES, row, told["records"])
            blocks = self._range(BLOCKS_FILE, schemas.BLOCKS, block, told["blocks"])
            row, block = row + told["records"], block + told["blocks"]
            check = check_slice(self._folder, told, rows, blocks, rules)
            self.result.findings += check.findings
            self.result.slices.append(check.facts)
            self.result.counts.update(slices=1, bytes=check.size_bytes)
            if check.examples is None:
                self.result.unreadable["slices"] += 1
                continue
            self.result.counts["examples"] += check.examples.num_rows
            yield from dealt_lines(check.examples, told["split"], number)

    def _range(self, name: str, schema: pa.Schema, first: int, rows: int) -> pa.Table | None:
        """Rows of a table beside the manifest; None, and a finding, where they cannot be read."""
        try:
            table = parquet_tables.read_range(self._folder / name, first, first + rows)
            if why := table_fault(table, schema):
                raise DataError(f"{self._folder / name} {why}")
            return table
        except (DataError, FileNotFoundError, pa.ArrowException) as error:
            missing = isinstance(error, FileNotFoundError)
            line = f"{self._folder / name} is missing" if missing else str(error).splitlines()[0]
            finding = Finding(TABLE, name, line)
            if finding not in self.result.findings:
                self.result.findings.append(finding)
            return None

    def _parts(self, work: Mapping[str, Any]) -> Iterator[Line]:
        root = open_place(self.job["root"])
        # of the images that no list removed, the first of each content is dealt
        left_out = frozenset(removed_keys(self._folder)) if self.job["dropped"] else frozenset[str]()
        try:
            removed = Removed.read(root, self.job)
        except (DataError, FileNotFoundError) as error:
            told = self.job["removed"]
            self._find(REMOVED, told["file"], str(error))
            self.result.unreadable.update(parts=len(work["parts"]), lists=1)
            return
        dealing = dealing_of(self.job) if self.job["counts"] is not None else None
        for number, part in enumerate(work["parts"], start=work["number"]):
            rows = self._rows(root, part, removed, dealing)
            if rows is None:
                self.result.unreadable["parts"] += 1
                continue
            self.result.counts.update(parts=1, good=rows.num_rows)
            planned = rows[PLANNED].to_pylist() if dealing is not None else None
            order = PartOrder(number if self.job["dropped"] else None, left_out, planned, self._groups(rows))
            yield from good_lines(rows, part["entry"]["part"], order)

    def _rows(self, root: Place, part: Part, removed: Removed, dealing: Dealing | None) -> pa.Table | None:
        """The live rows of a part, after they and its rejects were compared with its pack's list; None if in doubt.

        With a ``dealing``, a column `PLANNED` has the slice of each by number, -1 if it is left out.
        """
        entry, pack = part["entry"], pack_of(part["entry"])
        name, rejects = entry["part"], entry["rejects"]
        images = self._table(LISTED, pack, list_place(root / "raw", pack), entry["list_sha256"])
        good = self._table(ROWS, name, rows_place(root / "normalized", name), entry["rows_sha256"])
        bad: pa.Table | None = schemas.REJECTS.empty_table()
        if rejects["count"]:
            bad = self._table(REJECTS, name, rejects_places(root / "normalized", name)[1], rejects["list_sha256"])
        check = PartCheck(entry, part["pack"], removed)
        self.result.unreadable.update(lists=images is None, rejects=bad is None)
        if images is not None:
            self.result.findings += check.list_findings(images)
            self._count_images(check.live(images))
        if good is not None and dealing is not None:
            good = self._planned(part, good, dealing)
        if good is None or bad is None:
            return good if good is None else check.live(good)
        doubts = list(check.input_findings(images, good, bad)) if images is not None else []
        doubts = doubts or list(check.row_findings(good, bad, self.job["normalized_image"]))
        self.result.findings += doubts
        if doubts:
            return None
        self.result.findings += check.entry_findings(good, bad)
        self.result.counts["rejects"] += check.live(bad).num_rows
        return check.live(good)

    def _planned(self, part: Part, rows: pa.Table, dealing: Dealing) -> pa.Table:
        """The rows with the slice that each is dealt to; null if the rows are not those that were planned."""
        fates = open_place(self.job["fates"]) if self.job["fates"] else None
        try:
            slices = pa.array(deal_rows(dealing, rows, part["dealing"], fates)[1])
        except (ValueError, IndexError, DataError):
            slices = pa.nulls(rows.num_rows, pa.int64())
        return rows.append_column(PLANNED, slices)

    def _count_images(self, live: pa.Table) -> None:
        counts = {"images": live.num_rows, "bytes": sum(live["size"].to_pylist())}
        counts |= {f"class {label}": number for label, number in _counted(live["label"])}
        counts |= {f"split {split}": number for split, number in _counted(live["split"]) if split is not None}
        self.result.live.update(counts)

    def _groups(self, rows: pa.Table) -> Sequence[str | None] | None:
        if self.job["group_by"] is None:
            return None
        values = pc.map_lookup(rows["columns"], pa.scalar(self.job["group_by"]), "first")
        return cast(list[str | None], values.to_pylist())

    def _table(self, what: str, name: str, place: Place, sha256: str) -> pa.Table | None:
        """A table; None, and a finding, where it is not the one that was written, or none of its kind."""
        self.result.counts["files"] += what != ROWS
        if line := hash_fault(place, sha256):
            self._find(what, name, line)
            return None
        self.result.counts["other_bytes"] += place.info().size if what != ROWS else 0
        schema = {LISTED: schemas.IMAGES, ROWS: schemas.ROWS, REJECTS: schemas.REJECTS}[what]
        try:
            table = parquet_tables.read_table(place)
            why = table_fault(table, schema)
        except DataError as error:
            table, why = None, str(error)
        if why is not None:
            self._find(LISTED if what == LISTED else INPUT, name, f"{place} {why}")
            return None
        return table

    def _find(self, what: str, name: str, line: str) -> None:
        self.result.findings.append(Finding(what, name, line))

    def _files(self, work: Mapping[str, Any]) -> Iterator[Line]:
        for each in work["files"]:
            place = open_place(each["uri"])
            if line := hash_fault(place, each["sha256"]):
                self.result.findings.append(Finding(each["what"], each["name"], line))
            else:
                self.result.counts["other_bytes"] += place.info().size
                self.result.findings += self._inside(place, each)
            self.result.counts["files"] += 1
        return iter(())

    def _inside(self, place: Place, told: Mapping[str, Any]) -> Iterator[Finding]:
        """Whether a part has the records of its rows, and a pack or a tar file of rejects the images of its list.

        If rows or a list are damaged, that is found with their part.
        """
        root, what, name = open_place(self.job["root"]), told["what"], told["name"]
        line = None
        try:
            if what == PART:
                rows = parquet_tables.read_table(rows_place(root / "normalized", name), [*RECORD_COLUMNS])
                line = records_fault(place, rows)
            elif what == REJECTS:
                line = images_fault(place, parquet_tables.read_table(rejects_places(root / "normalized", name)[1]))
            elif what == PACK:
                line = images_fault(place, parquet_tables.read_table(list_place(root / "raw", name)))
        except (DataError, FileNotFoundError):
            return
        if line is not None:
            yield Finding(LISTED if what == PACK else INPUT, name, line)

    def _departed(self, work: Mapping[str, Any]) -> Iterator[Line]:
        del work
        place = self._folder / DEPARTED_FILE
        try:
            for table in parquet_tables.iterate_groups(place):
                if why := table_fault(table, schemas.DEPARTED):
                    raise DataError(f"{place} {why}")
                yield from gone_lines(table)
        except (DataError, FileNotFoundError) as error:
            self._find(TABLE, DEPARTED_FILE, f"{place} is missing" if isinstance(error, OSError) else str(error))
            self.result.unreadable["departed"] += 1
            return

    def _earlier(self, work: Mapping[str, Any]) -> Iterator[Line]:
        folder = open_place(self.job["earlier"])
        try:
            if "first" in work:
                columns = ["key", "split", "sha256"]
                rows = parquet_tables.read_range(folder / EXAMPLES_FILE, work["first"], work["last"], columns)
                yield from earlier_lines(rows)
            else:
                for table in parquet_tables.iterate_groups(folder / work["file"]):
                    yield from earlier_lines(table)
        except (DataError, FileNotFoundError):  # its SHA-256 is told of as a file's
            self.result.unreadable["earlier"] += 1


def _counted(column: pa.ChunkedArray) -> Iterator[tuple[Any, int]]:
    return ((each["values"], each["counts"]) for each in column.value_counts().to_pylist())


def hash_fault(place: Place, sha256: str) -> str | None:
    """Why a file is not the one with this SHA-256, if so."""
    try:
        return None if place.sha256() == sha256 else f"{place} has another SHA-256 than the one recorded"
    except FileNotFoundError:
        return f"{place} is missing"

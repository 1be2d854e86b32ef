"""What a task of a verification does: check one line of the list of work, and say what is to be judged across lines."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.normalized.live_rows import live_rows
from etl.normalized.parts import read_rows, rejects_places, rows_place
from etl.raw.packs import list_place
from etl.raw.removed import Removed
from etl.slices.manifest import BLOCKS_FILE, DEPARTED_FILE, EXAMPLES_FILE
from etl.slices.memory import removed_keys
from etl.storage.place import Place, open_place
from etl.verify.check_markers import COLUMNS, input_faults, no_rejects
from etl.verify.check_slice import check_slice
from etl.verify.exactly_once import Line, dealt_lines, gone_lines, good_lines
from etl.verify.findings import LISTED, REJECTS, ROWS, TABLE, Finding
from etl.verify.work_list import DEPARTED, FILES, PARTS, SLICES

GOOD_COLUMNS = ["key", "label", "crc32c", "sha256", "split", "width", "height", "sums", "squares"]


@dataclass
class TaskResult:
    """What became of one line of work. ``untold`` counts slices and parts of which nothing is known to be in them."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    untold: Counter[str] = field(default_factory=Counter)
    by_class: dict[str, Counter[int]] = field(default_factory=dict)
    class_counts: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "findings": [each.to_json() for each in self.findings],
            "counts": dict(self.counts),
            "untold": dict(self.untold),
            "by_class": {split: dict(sorted(counts.items())) for split, counts in self.by_class.items()},
        }


@dataclass
class TaskCheck:
    """Checks one line; ``job`` is what the driver wrote for all of them. ``result`` holds once all lines were taken."""

    job: Mapping[str, Any]
    result: TaskResult = field(default_factory=TaskResult)

    def lines(self, work: Mapping[str, Any]) -> Iterator[Line]:
        """What is to be judged across lines."""
        kinds = {SLICES: self._slices, PARTS: self._parts, FILES: self._files, DEPARTED: self._departed}
        return kinds[work["kind"]](work)

    @property
    def _folder(self) -> Place:
        return open_place(self.job["folder"])

    def _slices(self, work: Mapping[str, Any]) -> Iterator[Line]:
        row, block = work["row"], work["block"]
        for number, told in enumerate(work["slices"], start=work["number"]):
            rows = self._range(EXAMPLES_FILE, schemas.EXAMPLES, row, told["records"])
            blocks = self._range(BLOCKS_FILE, schemas.BLOCKS, block, told["blocks"])
            row, block = row + told["records"], block + told["blocks"]
            check = check_slice(self._folder, told, rows, blocks)
            self.result.findings += check.findings
            self.result.counts.update(slices=1, bytes=check.size_bytes)
            if check.dealt is None:
                self.result.untold["slices"] += 1
                continue
            self.result.counts["examples"] += check.dealt.num_rows
            self._count_classes(told, check.labels)
            yield from dealt_lines(check.dealt, told["split"], number)

    def _range(self, name: str, schema: pa.Schema, first: int, rows: int) -> pa.Table | None:
        """Rows of a table beside the manifest; None, and a finding, where they cannot be read."""
        try:
            table = parquet_tables.read_range(self._folder / name, first, first + rows, schema.names)
            return table.cast(schema)
        except (DataError, FileNotFoundError, pa.ArrowException) as error:
            missing = isinstance(error, FileNotFoundError)
            line = f"{self._folder / name} is missing" if missing else str(error).splitlines()[0]
            finding = Finding(TABLE, name, line)
            if finding not in self.result.findings:
                self.result.findings.append(finding)
            return None

    def _count_classes(self, told: Mapping[str, Any], labels: Counter[int]) -> None:
        self.result.by_class.setdefault(told["split"], Counter()).update(labels)
        self.result.class_counts += [
            {"slice": told["name"], "split": told["split"], "label": label, "records": count}
            for label, count in sorted(labels.items())
        ]

    def _parts(self, work: Mapping[str, Any]) -> Iterator[Line]:
        root = open_place(self.job["root"])
        # of the images that no list removed, the first of each content is dealt
        left_out = frozenset(removed_keys(self._folder)) if self.job["dropped"] else frozenset[str]()
        try:
            removed = Removed.read(root, self.job)
        except (DataError, FileNotFoundError):  # its SHA-256 is told of as a file's
            self.result.untold["parts"] += len(work["parts"])
            return
        for number, part in enumerate(work["parts"], start=work["number"]):
            if line := hash_fault(rows_place(root / "normalized", part["part"]), part["sha256"]):
                self.result.findings.append(Finding(ROWS, part["part"], line))
                self.result.untold["parts"] += 1
                continue
            self._input(root, part, removed)
            rows = live_rows(root / "normalized", part, removed, GOOD_COLUMNS)
            self.result.counts.update(parts=1, good=rows.num_rows)
            yield from good_lines(rows, part["part"], number if self.job["dropped"] else None, left_out)

    def _input(self, root: Place, part: Mapping[str, Any], removed: Removed) -> None:
        """Whether the images of a part's pack are its rows and its rejects; counts those rejects that are live."""
        images = self._listed(LISTED, part["pack"], list_place(root / "raw", part["pack"]), part["list_sha256"])
        rejects = no_rejects()
        if part["rejects_sha256"] is not None:
            listed = rejects_places(root / "normalized", part["part"])[1]
            rejects = self._listed(REJECTS, part["part"], listed, part["rejects_sha256"])
        if rejects is None:
            self.result.untold["rejects"] += 1
            return
        self.result.counts["rejects"] += int(removed.live(part["pack"], rejects["key"]).sum())
        if images is not None:
            good = read_rows(root / "normalized", part["part"], COLUMNS)
            self.result.findings += input_faults(part, images, good, rejects)

    def _listed(self, what: str, name: str, place: Place, sha256: str) -> pa.Table | None:
        """Keys and contents of a list; None, and a finding, where it is not the one that was written."""
        self.result.counts["files"] += 1
        if line := hash_fault(place, sha256):
            self.result.findings.append(Finding(what, name, line))
            return None
        self.result.counts["other_bytes"] += place.info().size
        return parquet_tables.read_table(place, COLUMNS)

    def _files(self, work: Mapping[str, Any]) -> Iterator[Line]:
        for each in work["files"]:
            place = open_place(each["uri"])
            if line := hash_fault(place, each["sha256"]):
                self.result.findings.append(Finding(each["what"], each["name"], line))
            else:
                self.result.counts["other_bytes"] += place.info().size
            self.result.counts["files"] += 1
        return iter(())

    def _departed(self, work: Mapping[str, Any]) -> Iterator[Line]:
        del work
        try:
            for table in parquet_tables.iterate_groups(self._folder / DEPARTED_FILE, ["key", "removed"]):
                yield from gone_lines(table)
        except (DataError, FileNotFoundError):  # its SHA-256 is told of as a file's
            self.result.untold["departed"] += 1


def hash_fault(place: Place, sha256: str) -> str | None:
    """Why a file is not the one with this SHA-256, if so."""
    try:
        return None if place.sha256() == sha256 else f"{place} has another SHA-256 than the one recorded"
    except FileNotFoundError:
        return f"{place} is missing"

"""Compare one slice with all that is recorded of it: its entry in the manifest, its index, its rows in the tables.

A slice whose bytes have the SHA-256 of the manifest is right, and what differs from it is wrong; a slice with
another SHA-256 is wrong itself. So each finding names the file that is to be put right.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from etl.errors import DataError
from etl.formats.example import ImageExample
from etl.slices.manifest import table_file
from etl.slices.writer import index_of, order_key, scan_slice
from etl.storage.place import Place
from etl.verify.compare import table_difference
from etl.verify.findings import INDEX, MANIFEST, MANIFEST_FILE, SLICE, TABLE, Finding

SIDES = ("height", "width", "channels", "format")  # of all images; null if they differ
NOT_IN_RECORDS = ("source", "sha256")  # columns of the table of examples that only the parts have

Entry = Mapping[str, Any]


@dataclass
class ExampleCheck:
    """Compares the examples of a slice, in order, with what the manifest records of all; ``misfit`` is the first fault.

    That is the class of each label, the ``image``, and the ``seed`` of their order.
    """

    classes: Sequence[str]
    image: Entry
    seed: int
    misfit: str | None = None
    _last: bytes = b""

    def add(self, example: ImageExample) -> None:
        order, key = order_key(example.key, self.seed), example.key
        due = {name: value for name, value in self.image.items() if name in SIDES and value is not None}
        due["text"] = self.classes[example.label] if 0 <= example.label < len(self.classes) else None
        wrong = [name for name, value in due.items() if getattr(example, name) != value]
        if self.misfit is None and wrong:
            self.misfit = f"{key}: {wrong[0]} is {getattr(example, wrong[0])}, not {due[wrong[0]]} as in the manifest"
        elif self.misfit is None and order < self._last:
            self.misfit = f"{key} is not in the order of the manifest's seed {self.seed}"
        self._last = order


@dataclass
class SliceCheck:
    """What was found in one slice.

    ``examples`` are the rows of its examples, as the slice has them, or the table if the slice is damaged; None if
    neither can tell. Columns ``source`` and ``sha256`` are null unless the table agrees with the slice. ``facts`` are
    those of `SliceScan`; of a damaged slice those recorded, with its labels by the table.
    """

    findings: list[Finding] = field(default_factory=list)
    size_bytes: int = 0
    examples: pa.Table | None = None
    facts: dict[str, Any] | None = None


def check_slice(
    folder: Place, entry: Entry, rows: pa.Table | None, blocks: pa.Table | None, examples: ExampleCheck
) -> SliceCheck:
    """Compare a slice below ``folder`` with its entry in the manifest, its index, and its part of both tables.

    ``entry`` is that of the manifest, with the split. A table that cannot be read is None. The file is read once, front
    to back; memory goes with the number of examples.
    """
    name, index = entry["name"], folder / f"{entry['name']}.idx"
    check, place = SliceCheck(examples=rows), folder / f"{name}.tfrecord"
    try:
        scan, sha256 = scan_slice(folder, entry["split"], name, examples.add)
        check.size_bytes = scan.size_bytes
        if (sha256, scan.size_bytes) != (entry["sha256"], entry["bytes"]):
            raise DataError(f"{place} has another SHA-256 than the one recorded")
    except (DataError, FileNotFoundError) as error:
        missing = isinstance(error, FileNotFoundError)
        check.findings.append(Finding(SLICE, name, f"{place} is missing" if missing else str(error)))
        if rows is not None:
            by_label = sorted(Counter(rows["label"].to_pylist()).items())
            check.facts = {**entry, "by_label": {str(label): number for label, number in by_label}}
    else:
        check.examples, check.facts = scan.rows(), scan.facts(sha256)
        if examples.misfit:
            check.findings.append(Finding(MANIFEST, MANIFEST_FILE, f"{place}: {examples.misfit}"))
        check.findings += _table_faults(name, table_file("blocks"), scan.blocks(), blocks)
        faults = _table_faults(name, table_file("examples"), check.examples, rows)
        check.findings += faults
        check.examples = check.examples if faults or rows is None else rows
    if check.examples is not None and (line := _index_fault(index, index_of(check.examples))):
        check.findings.append(Finding(INDEX, name, line))
    return check


def _table_faults(name: str, file: str, expected: pa.Table, recorded: pa.Table | None) -> list[Finding]:
    if recorded is None:
        return []
    compared = [column for column in expected.column_names if column not in NOT_IN_RECORDS]
    line = table_difference(expected.select(compared), recorded.select(compared))
    return [Finding(TABLE, file, f"{file}, rows of {name}: {line}")] if line else []


def _index_fault(index: Place, expected: bytes) -> str | None:
    try:
        return None if index.read_bytes() == expected else f"{index} does not fit its slice"
    except FileNotFoundError:
        return f"{index} is missing"

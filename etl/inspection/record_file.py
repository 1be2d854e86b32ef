"""One file of records of a finished stage, a slice or a part, found by its path, with its entry in the marker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.formats.records import Record, open_record
from etl.normalized.parts import records_place, rows_place
from etl.slices.manifest import located_slices, read_manifest, table_file
from etl.stages.layout import normalized_stage, slices_stage_in
from etl.stages.stage import Stage
from etl.storage.place import Place, open_place

ENDINGS = (".tfrecord", ".idx", ".parquet")
MAX_LEVELS = 4  # of folders between a slice and its manifest, that folder counted


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    """A slice or a part: its file, its ``entry`` in the marker, and its rows, from ``first_row`` of ``rows_file`` on.

    ``root`` is that of the dataset, None if slices lie outside of one; ``remedy`` is what to do if the file is damaged.
    """

    kind: str
    name: str
    place: Place
    entry: Mapping[str, Any]
    classes: Sequence[str]
    rows_file: Place
    first_row: int = 0
    root: Place | None
    remedy: str

    @property
    def records(self) -> int:
        return int(self.entry["records"])

    def rows(self, columns: list[str] | None = None, start: int = 0, stop: int | None = None) -> pa.Table:
        """The rows of records ``start`` to before ``stop``: of the table of examples, or the part's own."""
        end = self.records if stop is None else stop
        return parquet_tables.read_range(self.rows_file, self.first_row + start, self.first_row + end, columns)

    def find(self, key: str) -> int:
        """The number of the record with this key. Raises UsageError if there is none."""
        found = pc.index(self.rows(["key"])["key"], key).as_py()
        if found < 0:
            table = f"; {self.rows_file} has the slice of each key" if self.kind == "slice" else ""
            raise UsageError(f"{self.kind} {self.name} has no example with the key {key!r}{table}")
        return int(found)

    def read(self, number: int) -> tuple[dict[str, Any], Record]:
        """The row and the record of an example; nothing else of the file is read.

        Raises UsageError for a number that is out of range, DataError if the record is damaged.
        """
        if not 0 <= number < self.records:
            raise UsageError(
                f"--index {number} is out of range: {self.kind} {self.name} has {self.records} examples,"
                f" 0 to {self.records - 1}"
            )
        row: dict[str, Any] = self.rows(None, number, number + 1).to_pylist()[0]
        offset, size = row["offset"], row["size"]
        with self.place.open_input() as source:
            framed = source.read_at(size, offset) if offset + size <= source.size() else b""
        try:
            return row, open_record(framed, offset, str(self.place))
        except DataError as error:
            raise DataError(f"{error} (example {number}); {self.remedy}") from None


def open_record_file(uri: str) -> RecordFile:
    """The slice or part at a path or URI, with or without its ending.

    Raises UsageError if no finished stage has it, DataError if one has and the file is missing.
    """
    place = open_place(uri.rstrip("/"))
    name = next((place.name.removesuffix(ending) for ending in ENDINGS if place.name.endswith(ending)), place.name)
    normalized = normalized_stage(place.parent.parent.parent)
    is_part = place.parent == normalized.folder / "parts" and normalized.marker.exists()
    found = _part(normalized, name) if is_part else _slice(place, name)
    if not found.place.exists():
        raise DataError(f"{found.place} is missing; {found.remedy}")
    return found


def _part(normalized: Stage, name: str) -> RecordFile:
    current = normalized.read_generation()
    generations = [current, *normalized.earlier_generations()]
    entry = next((part for each in generations for part in each.entries if part["part"] == name), None)
    if entry is None:
        raise UsageError(f"{normalized.marker} has no part {name}")
    return RecordFile(
        kind="part",
        name=name,
        place=records_place(normalized.folder, name),
        entry=entry,
        classes=current.marker["classes"],
        rows_file=rows_place(normalized.folder, name),
        root=normalized.folder.parent,
        remedy="run: ringslice normalize --overwrite",
    )


def _slice(place: Place, name: str) -> RecordFile:
    folder = place.parent
    for _ in range(MAX_LEVELS):
        stage = slices_stage_in(folder)
        if stage.marker.exists():
            return _slice_of(stage, name)
        folder, name = folder.parent, f"{folder.name}/{name}"
    raise UsageError(
        f"{place} is not a slice: there is no manifest.json above it;"
        " give something like ROOT/slices/default/train/train-00000-of-00008"
    )


def _slice_of(stage: Stage, name: str) -> RecordFile:
    manifest, folder = read_manifest(stage), stage.folder
    found = next((each for each in located_slices(manifest) if each[1]["name"] == name), None)
    if found is None:
        raise UsageError(f"{stage.marker} has no slice {name}")
    _, entry, first_row, _ = found
    root = folder.parent.parent if folder.parent.name == "slices" else None
    return RecordFile(
        kind="slice",
        name=name,
        place=folder / f"{name}.tfrecord",
        entry=entry,
        classes=manifest["classes"],
        rows_file=folder / table_file("examples"),
        first_row=first_row,
        root=root,
        remedy=f"run: ringslice verify {root} --name {folder.name} --repair" if root else "copy the slices again",
    )

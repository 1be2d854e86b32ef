"""One file of records of a finished stage, a slice or a part, found by its path, with its entry in the marker."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.formats.records import Record, open_record
from etl.normalized.parts import records_place, rows_place
from etl.slices.manifest import located_slices, read_manifest
from etl.stages.layout import normalized_stage, slices_stage_in
from etl.stages.stage import Stage
from etl.storage.place import Place, open_place

ENDINGS = (".tfrecord", ".idx", ".parquet")
MAX_LEVELS = 4  # of folders between a slice and its manifest, that folder counted


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    """A slice or a part, and its ``entry`` in the marker of ``stage``; ``root`` is that of the dataset, if known.

    ``first_row`` is the first of its rows in ``rows_file``, ``first_block`` that of its blocks in the table of blocks.
    """

    kind: str
    name: str
    place: Place
    stage: Stage
    marker: Mapping[str, Any]
    entry: Mapping[str, Any]
    rows_file: Place
    root: Place | None = None
    split: str | None = None
    first_row: int = 0
    first_block: int = 0
    remedy: str = ""

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

    def read(self, number: int) -> Record:
        """One record, and nothing else of the file.

        Raises UsageError for a number that is out of range, DataError if the record is damaged.
        """
        if not 0 <= number < self.records:
            raise UsageError(
                f"--index {number} is out of range: {self.kind} {self.name} has {self.records} examples,"
                f" 0 to {self.records - 1}"
            )
        row = self.rows(["offset", "size"], number, number + 1).to_pylist()[0]
        offset, size = row["offset"], row["size"]
        with self.place.open_input() as source:
            framed = source.read_at(size, offset) if offset + size <= source.size() else b""
        try:
            return open_record(framed, offset, str(self.place))
        except DataError as error:
            raise DataError(f"{error} (example {number}); {self.remedy}") from None


def open_record_file(uri: str) -> RecordFile:
    """The slice or part at a path or URI, with or without its ending.

    Raises UsageError if no finished stage has it, DataError if one has and the file is missing.
    """
    place = open_place(uri.rstrip("/"))
    bare = next((place.name.removesuffix(ending) for ending in ENDINGS if place.name.endswith(ending)), place.name)
    parent = place.parent
    found = _part(parent, bare) if parent.name == "parts" else _slice(parent, bare)
    if found is None:
        raise UsageError(
            f"{place} is not a slice: there is no manifest.json above it;"
            " give something like ROOT/slices/default/train/train-00000-of-00008"
        )
    if not found.place.exists():
        raise DataError(f"{found.place} is missing; {found.remedy}")
    return found


def _part(parts: Place, name: str) -> RecordFile | None:
    root = parts.parent.parent
    stage = normalized_stage(root)
    if parts.parent.name != "normalized" or not stage.marker.exists():
        return None
    marker = stage.read_marker()
    markers = [marker, *(kept.marker for kept in stage.earlier_generations())]
    entry = next((part for each in markers for part in each["parts"] if part["part"] == name), None)
    if entry is None:
        raise UsageError(f"{stage.marker} has no part {name}")
    return RecordFile(
        kind="part",
        name=name,
        place=records_place(stage.folder, name),
        stage=stage,
        marker=marker,
        entry=entry,
        rows_file=rows_place(stage.folder, name),
        root=root,
        remedy="run: ringslice normalize --overwrite",
    )


def _slice(folder: Place, name: str) -> RecordFile | None:
    for _ in range(MAX_LEVELS):
        stage = slices_stage_in(folder)
        if stage.marker.exists():
            return _slice_of(stage, name)
        folder, name = folder.parent, f"{folder.name}/{name}"
    return None


def _slice_of(stage: Stage, name: str) -> RecordFile:
    manifest = read_manifest(stage)
    folder = stage.folder
    root = folder.parent.parent if folder.parent.name == "slices" else None
    found = next((each for each in located_slices(manifest) if each[1]["name"] == name), None)
    if found is None:
        raise UsageError(f"{stage.marker} has no slice {name}")
    split, entry, row, block = found
    return RecordFile(
        kind="slice",
        name=name,
        place=folder / f"{name}.tfrecord",
        stage=stage,
        marker=manifest,
        entry=entry,
        rows_file=folder / manifest["tables"]["examples"]["file"],
        root=root,
        split=split,
        first_row=row,
        first_block=block,
        remedy=f"run: ringslice verify {root} --name {folder.name} --repair" if root else "copy the slices again",
    )

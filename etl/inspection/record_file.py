"""One file of records of a finished stage, a slice or a part, found by its path: what it is said to hold, and where."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError, UsageError
from etl.formats import parquet_tables
from etl.formats.records import Record, index_bytes, parse_index, read_records
from etl.normalized.parts import records_place, rows_place
from etl.slices.manifest import located_slices, read_manifest
from etl.stages.layout import normalized_stage, slices_stage_in
from etl.stages.stage import Stage
from etl.storage.place import Place, open_place

ENDINGS = (".tfrecord", ".idx", ".parquet")
MOST_LEVELS = 4  # of folders between a slice and its manifest, that folder counted


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    """A slice or a part: ``told`` is its entry in the marker of ``stage``, ``root`` the dataset where that is known.

    ``first_row`` is where its rows begin in ``rows_file``, ``first_block`` where its blocks do in the table of blocks.
    """

    kind: str
    name: str
    place: Place
    stage: Stage
    marker: Mapping[str, Any]
    told: Mapping[str, Any]
    rows_file: Place
    root: Place | None = None
    split: str | None = None
    first_row: int = 0
    first_block: int = 0
    remedy: str = ""

    @property
    def records(self) -> int:
        return int(self.told["records"])

    @property
    def index_file(self) -> Place | None:
        """The index beside a slice; parts have their rows instead."""
        return self.place.parent / f"{self.name.rpartition('/')[2]}.idx" if self.kind == "slice" else None

    @cached_property
    def index(self) -> tuple[list[int], list[int]]:
        """Offset and size of each record, from the index. Raises DataError where it is missing or not that long."""
        if self.index_file is None:
            rows = self.rows(["offset", "size"])
            return rows["offset"].to_pylist(), rows["size"].to_pylist()
        try:
            offsets, sizes = parse_index(self.index_file.read_bytes(), str(self.index_file))
        except FileNotFoundError:
            raise DataError(f"{self.index_file} is missing; {self.remedy}") from None
        except DataError as error:
            raise DataError(f"{error}; {self.remedy}") from None
        if len(offsets) != self.records:
            raise DataError(f"{self.index_file} tells of {len(offsets)} records, not {self.records}; {self.remedy}")
        return offsets.tolist(), sizes.tolist()

    def rows(self, columns: list[str] | None = None, start: int = 0, stop: int | None = None) -> pa.Table:
        """The rows of records ``start`` to before ``stop``: of the table of examples, or the part's own."""
        end = self.records if stop is None else stop
        return parquet_tables.read_range(self.rows_file, self.first_row + start, self.first_row + end, columns)

    def find(self, key: str) -> int:
        """The number of the record with this key. Raises UsageError where there is none."""
        found = pc.index(self.rows(["key"])["key"], key).as_py()
        if found < 0:
            table = f"; {self.rows_file} tells which slice does" if self.kind == "slice" else ""
            raise UsageError(f"{self.kind} {self.name} holds no example with the key {key!r}{table}")
        return int(found)

    def read(self, number: int) -> Record:
        """One record, and nothing else of the file.

        Raises UsageError for a number that is out of range, DataError where the record or the index is damaged.
        """
        if not 0 <= number < self.records:
            raise UsageError(
                f"--index {number} is out of range: {self.kind} {self.name} has {self.records} examples,"
                f" 0 to {self.records - 1}"
            )
        offsets, sizes = self.index
        offset, size = offsets[number], sizes[number]
        record = None
        with self.place.open_input() as source:
            if 0 <= offset <= source.size():
                source.seek(offset)
                try:
                    record = next(read_records(source, str(self.place), offset), None)
                except DataError as error:
                    raise DataError(f"{error} (example {number}); {self.remedy}") from None
        if record is None or record.size != size:
            raise DataError(f"{self.place} has no record {number} at offset {offset} as its index tells; {self.remedy}")
        return record

    def holds_what_is_told(self) -> dict[str, bool]:
        """Whether the file, and its index, are those that the stage wrote; reads all of the file."""
        found = {"sha256": self.place.sha256() == self.told["sha256"]}
        if self.index_file is not None:
            rows = self.rows(["offset", "size"])
            expected = index_bytes(rows["offset"].to_pylist(), rows["size"].to_pylist())
            found["index"] = self.index_file.exists() and self.index_file.read_bytes() == expected
        return found


def open_record_file(uri: str) -> RecordFile:
    """The slice or part at a path or URI, with or without its ending.

    Raises UsageError where no finished stage tells of it, DataError where one does and the file is missing.
    """
    place = open_place(uri.rstrip("/"))
    bare = next((place.name.removesuffix(ending) for ending in ENDINGS if place.name.endswith(ending)), place.name)
    parent = place.parent
    found = _part(parent, bare) if parent.name == "parts" else _slice(parent, bare)
    if found is None:
        raise UsageError(
            f"{place} is no slice: no manifest.json above it tells of it;"
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
    told = next((part for each in markers for part in each["parts"] if part["part"] == name), None)
    if told is None:
        raise UsageError(f"{stage.marker} tells of no part {name}")
    remedy = "run: ringslice normalize --overwrite"
    place, rows = records_place(stage.folder, name), rows_place(stage.folder, name)
    return RecordFile(
        kind="part",
        name=name,
        place=place,
        stage=stage,
        marker=marker,
        told=told,
        rows_file=rows,
        root=root,
        remedy=remedy,
    )


def _slice(folder: Place, name: str) -> RecordFile | None:
    for _ in range(MOST_LEVELS):
        stage = slices_stage_in(folder)
        if stage.marker.exists():
            return _slice_of(stage, name)
        folder, name = folder.parent, f"{folder.name}/{name}"
    return None


def _slice_of(stage: Stage, name: str) -> RecordFile:
    manifest = read_manifest(stage)
    folder = stage.folder
    root = folder.parent.parent if folder.parent.name == "slices" else None
    remedy = f"run: ringslice verify {root} --name {folder.name} --repair" if root else "copy the slices again"
    for split, each, row, block in located_slices(manifest):
        if each["name"] == name:
            return RecordFile(
                kind="slice",
                name=name,
                place=folder / f"{name}.tfrecord",
                stage=stage,
                marker=manifest,
                told=each,
                rows_file=folder / manifest["tables"]["examples"]["file"],
                root=root,
                split=split,
                first_row=row,
                first_block=block,
                remedy=remedy,
            )
    raise UsageError(f"{stage.marker} tells of no slice {name}")

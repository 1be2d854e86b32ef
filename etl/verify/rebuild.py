"""Slices, indexes and tables made again, byte for byte, from what is still there: nothing is decoded."""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.formats.records import read_records
from etl.normalized.live_rows import live_rows
from etl.normalized.parts import read_rows, records_place
from etl.raw.removed import Removed
from etl.slices.manifest import (
    BLOCKS_FILE,
    CLASS_COUNTS_FILE,
    CONTENTS_FILE,
    DEPARTED_FILE,
    EXAMPLES_FILE,
    GROUPS_FILE,
    slices_of,
)
from etl.slices.manifest_builder import class_counts
from etl.slices.plan import deal_rows
from etl.slices.writer import DealtExample, SliceScan, order_key, scan_slice
from etl.storage.place import Place
from etl.verify.target import Target

WANTED = ["key", "sha256", "label", "split"]


def plan_again(target: Target, names: Sequence[str], attempts: Place) -> Iterator[tuple[str, pa.Table]]:
    """These slices by name, and the examples of each in their order: columns source, key and sha256.

    Raises DataError where the plan does not come out as it was: images or earlier slices are not there any more.
    """
    plan = target.plan_again()
    fates = attempts / "fates.parquet"
    fates.delete()
    if plan.decided:
        parquet_tables.write_tables(fates, attempts, schemas.FATES, plan.decided.tables())
    wanted = {number: name for number, name in enumerate(target.slice_names) if name in names}
    found: dict[int, list[pa.Table]] = {number: [] for number in wanted}
    for task in plan:
        rows = read_rows(target.root / "normalized", task["part"], WANTED)
        _, slices = deal_rows(plan.dealing, rows, task, fates if plan.decided else None)
        source = pa.array([task["part"]] * rows.num_rows, pa.string())
        rows = rows.select(["key", "sha256"]).add_column(0, "source", source)
        for number in wanted:
            found[number].append(rows.filter(pa.array(slices == number)))
    for number, name in wanted.items():
        rows = pa.concat_tables(found[number])
        keys = rows["key"].to_pylist()
        yield name, rows.take(sorted(range(len(keys)), key=lambda row: order_key(keys[row], plan.dealing.plan.seed)))


OPEN_FILES = 64
BATCH_ROWS = 250_000  # so many examples are looked up in the parts at once
PLACES = ["offset", "size", "crc32c"]


class DamagedPartError(DataError):
    """A part that does not hold what its rows tell of; ``part`` names it."""

    def __init__(self, part: str, line: str) -> None:
        super().__init__(line)
        self.part = part


@dataclass(frozen=True)
class Located:
    """Slices by name, and what their examples are, in their order: tables with the columns source, key and sha256."""

    normalized: Place
    slices: list[tuple[str, pa.Table]]

    @classmethod
    def find(cls, target: Target, names: Sequence[str], with_table: bool, attempts: Place) -> "Located":
        """By the table of examples, or without it by planning anew; ``attempts`` is where that may write.

        Raises DataError or FileNotFoundError where that cannot tell.
        """
        normalized = target.root / "normalized"
        if not with_table:
            return cls(normalized, list(plan_again(target, names, attempts)))
        first, slices = 0, []
        for _, told in slices_of(target.manifest):
            if told["name"] in names:
                place, last = target.slices.folder / EXAMPLES_FILE, first + told["records"]
                slices.append(
                    (told["name"], parquet_tables.read_range(place, first, last, ["key", "source", "sha256"]))
                )
            first += told["records"]
        return cls(normalized, slices)

    def __iter__(self) -> Iterator[tuple[str, pa.Table]]:
        """Each slice's examples with the place of each in its part (offset, size, crc32c).

        Slices are looked up together, as many as are `BATCH_ROWS`, so that the parts' rows are read once for all.
        """
        waiting, number = list[tuple[str, pa.Table]](), 0
        for name, rows in self.slices:
            waiting.append((name, rows))
            number += rows.num_rows
            if number >= BATCH_ROWS:
                yield from self._places(waiting)
                waiting, number = [], 0
        if waiting:
            yield from self._places(waiting)

    def _places(self, slices: Sequence[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
        wanted = pa.concat_tables([rows for _, rows in slices]).combine_chunks()
        found: dict[str, list[Any]] = {name: [None] * wanted.num_rows for name in PLACES}
        for source in pc.unique(wanted["source"]).to_pylist():
            here = pc.indices_nonzero(pc.equal(wanted["source"], source))
            known = read_rows(self.normalized, source, ["key", *PLACES])
            own = known.take(pc.index_in(wanted["key"].take(here), value_set=known["key"].combine_chunks()))
            for name, values in found.items():
                for position, value in zip(here.to_pylist(), own[name].to_pylist(), strict=True):
                    values[position] = value
        for name, values in found.items():
            wanted = wanted.append_column(name, pa.array(values, schemas.ROWS.field(name).type))
        first = 0
        for name, rows in slices:
            yield name, wanted.slice(first, rows.num_rows)
            first += rows.num_rows


def read_located(normalized: Place, rows: pa.Table) -> Iterator[DealtExample]:
    """The examples of one table of `Located`, in order. Raises DamagedPartError where one is not what it should be."""
    files: dict[str, pa.NativeFile] = {}
    try:
        for row in rows.to_pylist():
            part, place = row["source"], records_place(normalized, row["source"])
            try:
                if part not in files:
                    if len(files) == OPEN_FILES:
                        files.pop(next(iter(files))).close()
                    files[part] = place.open_input()
                data = files[part].read_at(row["size"], row["offset"])
                record = next(read_records(io.BytesIO(data), str(place)), None)
            except FileNotFoundError:
                raise DamagedPartError(part, f"{place} is missing") from None
            except (DataError, TypeError) as error:  # no place: its rows do not know the key
                raise DamagedPartError(part, str(error)) from None
            if record is None or record.crc32c != row["crc32c"]:
                raise DamagedPartError(part, f"{place} has not {row['key']} where its rows tell")
            yield record.data, part, row["sha256"]
    finally:
        for file in files.values():
            with suppress(OSError):
                file.close()


def table_again(file: str, target: Target) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Schema and rows of a table beside the manifest, from the slices."""
    folder = target.slices.folder
    slices = (scan_slice(folder, split, each["name"])[0] for split, each in slices_of(target.manifest))
    return {
        EXAMPLES_FILE: (schemas.EXAMPLES, _examples(target, slices)),
        BLOCKS_FILE: (schemas.BLOCKS, (scan.blocks() for scan in slices)),
        CLASS_COUNTS_FILE: (schemas.CLASS_COUNTS, (class_counts([scan.facts("")]) for scan in slices)),
        DEPARTED_FILE: (schemas.DEPARTED, iter([schemas.DEPARTED.empty_table()])),
        CONTENTS_FILE: (schemas.CONTENTS, iter([schemas.CONTENTS.empty_table()])),
        GROUPS_FILE: (schemas.GROUPS, iter([schemas.GROUPS.empty_table()])),
    }[file]


def _examples(target: Target, slices: Iterable[SliceScan]) -> Iterator[pa.Table]:
    waiting, number = list[pa.Table](), 0
    for scan in slices:
        waiting.append(scan.rows())
        number += waiting[-1].num_rows
        if number >= BATCH_ROWS:
            yield _with_sources(target, pa.concat_tables(waiting))
            waiting, number = [], 0
    if waiting:
        yield _with_sources(target, pa.concat_tables(waiting))


def _with_sources(target: Target, rows: pa.Table) -> pa.Table:
    """The same with source and sha256 of each key, from the live rows of all parts."""
    assert target.dataset is not None
    positions = {key: position for position, key in enumerate(rows["key"].to_pylist())}
    found: dict[str, list[Any]] = {"source": [None] * rows.num_rows, "sha256": [None] * rows.num_rows}
    removed = Removed.read(target.root, target.dataset)
    for part in target.dataset["parts"]:
        live = live_rows(target.root / "normalized", part, removed, ["key", "sha256"])
        for key, sha256 in zip(live["key"].to_pylist(), live["sha256"].to_pylist(), strict=True):
            if (position := positions.get(key)) is not None:
                found["source"][position], found["sha256"][position] = part["part"], sha256
    for name, values in found.items():
        field = schemas.EXAMPLES.field(name)
        rows = rows.set_column(schemas.EXAMPLES.get_field_index(name), field, pa.array(values, field.type))
    return rows

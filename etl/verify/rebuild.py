"""Slices and tables rebuilt, byte for byte, from what is still there: nothing is decoded."""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables, schemas
from etl.formats.records import read_records
from etl.normalized.live_rows import live_rows
from etl.normalized.parts import read_rows, records_place
from etl.raw.removed import Removed
from etl.slices.manifest import TABLES, located_slices, slices_of, table_file
from etl.slices.manifest_builder import class_counts
from etl.slices.plan import ASSIGNMENTS_FILE, assign_rows
from etl.slices.writer import SliceScan, SourcedExample, order_key, scan_slice
from etl.storage.place import Place
from etl.verify.target import Target

MAX_FILES = 64  # that are open at once
BATCH_ROWS = 250_000  # so many examples are looked up in the parts at once
WANTED = ["key", "sha256", "offset", "size", "crc32c"]  # of an example, from the rows of the parts


class DamagedPartError(DataError):
    """A part that has not what its rows say; ``part`` names it."""

    def __init__(self, part: str, line: str) -> None:
        super().__init__(line)
        self.part = part


def locate(target: Target, keys: pa.ChunkedArray) -> pa.Table:
    """The live rows of these keys, in their order: `WANTED`, and ``source``, their part; null for an unknown key.

    Raises DataError or FileNotFoundError if the rows of a part cannot be read.
    """
    assert target.dataset is not None
    removed, known = Removed.read(target.root, target.dataset.marker), keys.combine_chunks()
    found = [_with_source(schemas.ROWS.empty_table().select(WANTED), "")]
    for part in target.dataset.entries:
        rows = live_rows(target.root / "normalized", part, removed, WANTED)
        found.append(_with_source(rows.filter(pc.is_in(rows["key"], value_set=known)), part["part"]))
    table = pa.concat_tables(found).combine_chunks()
    return table.take(pc.index_in(known, value_set=table["key"].combine_chunks()))


def _with_source(rows: pa.Table, part: str) -> pa.Table:
    return rows.append_column("source", pa.array([part] * rows.num_rows, pa.string()))


def recorded_slices(target: Target, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """These slices by name, with the rows of their examples (see `locate`), by the table of examples.

    Slices of about `BATCH_ROWS` are located together. Raises DataError or FileNotFoundError if that table cannot tell.
    """
    place = target.slices.folder / table_file("examples")
    wanted = ((each["name"], first, each["records"]) for _, each, first, _ in located_slices(target.manifest))
    read = (
        (name, parquet_tables.read_range(place, first, first + records, ["key"]))
        for name, first, records in wanted
        if name in names
    )
    for batch in _batches(read):
        rows = locate(target, pa.concat_tables([keys for _, keys in batch])["key"])
        for name, keys in batch:
            yield name, rows.slice(0, keys.num_rows)
            rows = rows.slice(keys.num_rows)


def _batches(tables: Iterable[tuple[str, pa.Table]]) -> Iterator[list[tuple[str, pa.Table]]]:
    """Named tables together that have about `BATCH_ROWS`."""
    batch: list[tuple[str, pa.Table]] = []
    for each in tables:
        batch.append(each)
        if sum(table.num_rows for _, table in batch) >= BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def planned_slices(target: Target, names: Sequence[str], attempts: Place) -> Iterator[tuple[str, pa.Table]]:
    """As `recorded_slices`, by a new plan; ``attempts`` is where that may write.

    Raises DataError if the plan does not come out as it was: images or earlier slices are not there any more.
    """
    plan, assignments = target.plan_again(), attempts / ASSIGNMENTS_FILE
    assignments.delete()
    if plan.assignment:
        parquet_tables.write_tables(assignments, attempts, schemas.ASSIGNMENTS, plan.assignment.tables())
    found: dict[int, list[pa.Table]] = {number: [] for number, name in enumerate(target.slice_names) if name in names}
    for task in plan:
        rows = read_rows(target.root / "normalized", task["part"], [*WANTED, "label", "split"])
        _, slices = assign_rows(plan.slice_plan, rows, task, assignments if plan.assignment else None)
        own = _with_source(rows.select(WANTED), task["part"])
        for number, tables in found.items():
            tables.append(own.filter(pa.array(slices == number)))
    for number, tables in found.items():
        rows = pa.concat_tables(tables)
        keys = rows["key"].to_pylist()
        in_order = sorted(range(len(keys)), key=lambda row: order_key(keys[row], plan.slice_plan.seed))
        yield target.slice_names[number], rows.take(in_order)


def read_located(normalized: Place, rows: pa.Table) -> Iterator[SourcedExample]:
    """The examples of these rows (see `locate`), in order. Raises DamagedPartError if one is not what it should be."""
    files: dict[str, pa.NativeFile] = {}
    try:
        for row in rows.to_pylist():
            if row["key"] is None:
                raise DataError("the parts have not all of its examples")
            part, place = row["source"], records_place(normalized, row["source"])
            try:
                if part not in files:
                    if len(files) == MAX_FILES:
                        files.pop(next(iter(files))).close()
                    files[part] = place.open_input()
                data = files[part].read_at(row["size"], row["offset"])
                record = next(read_records(io.BytesIO(data), str(place)), None)
            except FileNotFoundError:
                raise DamagedPartError(part, f"{place} is missing") from None
            except DataError as error:
                raise DamagedPartError(part, str(error)) from None
            if record is None or record.crc32c != row["crc32c"]:
                raise DamagedPartError(part, f"{place} does not have {row['key']} at the offset of its rows")
            yield record.data, part, row["sha256"]
    finally:
        for file in files.values():
            with suppress(OSError):
                file.close()


def rebuild_table(name: str, target: Target) -> Iterator[pa.Table]:
    """The rows of a table beside the manifest, from the slices; of none, if later slices alone need it."""
    folder = target.slices.folder
    scans = (scan_slice(folder, split, each["name"])[0] for split, each in slices_of(target.manifest))
    if name == "examples":
        return _examples(target, scans)
    if name == "blocks":
        return (scan.blocks() for scan in scans)
    if name == "class_counts":
        return (class_counts([scan.facts("")]) for scan in scans)
    return iter([TABLES[name].empty_table()])


def _examples(target: Target, scans: Iterable[SliceScan]) -> Iterator[pa.Table]:
    """The rows of all slices, with source and sha256 from the parts."""
    for batch in _batches((scan.name, scan.rows()) for scan in scans):
        rows = pa.concat_tables([table for _, table in batch])
        located = locate(target, rows["key"])
        for name in ("source", "sha256"):
            rows = rows.set_column(rows.schema.get_field_index(name), schemas.EXAMPLES.field(name), located[name])
        yield rows

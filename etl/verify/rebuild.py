"""Slices and tables rebuilt, byte for byte, from what is still there: nothing is decoded."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.formats.records import open_record
from etl.normalized.parts import live_rows, read_rows, records_place
from etl.raw.removed import Removed
from etl.slices.manifest import TABLES, located_slices, slices_of, table_file
from etl.slices.manifest_builder import class_counts
from etl.slices.plan import ASSIGNMENTS_FILE, assign_rows
from etl.slices.writer import SourcedExample, order_key, scan_slice
from etl.storage.place import Place
from etl.verify.target import Target

WANTED = ["key", "sha256", "offset", "size", "crc32c"]  # of an example, from the rows of the parts

NamedTable = tuple[str, pa.Table]  # of a slice, by its name


class DamagedPartError(DataError):
    """A part that differs from its rows; ``part`` names it."""

    def __init__(self, part: str, line: str) -> None:
        super().__init__(line)
        self.part = part


def recorded_keys(target: Target, names: Sequence[str]) -> Iterator[NamedTable]:
    """The keys of these slices, in their order, by the table of examples.

    Raises DataError or FileNotFoundError if that table cannot tell.
    """
    place = target.slices.folder / table_file("examples")
    for _, entry, first, _ in located_slices(target.manifest):
        if entry["name"] in names:
            yield entry["name"], parquet_tables.read_range(place, first, first + entry["records"], ["key"])


def planned_keys(target: Target, names: Sequence[str], staging: Place) -> Iterator[NamedTable]:
    """As `recorded_keys`, by a new plan; ``staging`` is where that may write.

    Raises DataError if the plan does not come out as it was: images or earlier slices are not there any more.
    """
    plan = target.plan_again()
    assignments = plan.write_assignment(staging / ASSIGNMENTS_FILE, staging)
    keys: dict[int, list[str]] = {number: [] for number, name in enumerate(target.slice_names) if name in names}
    for task in plan:
        rows = read_rows(target.root / "normalized", task["part"], ["key", "label", "split"])
        _, slices = assign_rows(plan.slice_plan, rows, task, assignments)
        for number, own in keys.items():
            own += rows["key"].filter(pa.array(slices == number)).to_pylist()
    for number, own in keys.items():
        in_order = sorted(own, key=lambda key: order_key(key, plan.slice_plan.seed))
        yield target.slice_names[number], pa.table({"key": pa.array(in_order, pa.string())})


def locate(target: Target, tables: Iterable[NamedTable]) -> Iterator[tuple[str, pa.Table, pa.Table]]:
    """Named tables (column key), and with each the live rows of its keys, in their order: `WANTED`, and ``source``,
    their part; null for an unknown key. Memory goes with the number of keys.

    Raises DataError or FileNotFoundError if the rows of a part cannot be read.
    """
    assert target.dataset is not None
    named = list(tables)
    keys = pa.concat_tables([table.select(["key"]) for _, table in named])["key"]
    removed, found = Removed.read(target.root, target.dataset.marker), list[pa.Table]()
    for part in target.dataset.entries:
        rows = live_rows(target.root / "normalized", part, removed, WANTED)
        rows = rows.filter(pc.is_in(rows["key"], value_set=keys))
        found.append(rows.append_column("source", pa.repeat(part["part"], rows.num_rows)))
    rows = pa.concat_tables(found).combine_chunks()
    rows = rows.take(pc.index_in(keys, value_set=rows["key"]))
    for name, table in named:
        yield name, table, rows.slice(0, table.num_rows)
        rows = rows.slice(table.num_rows)


def read_located(normalized: Place, rows: pa.Table) -> Iterator[SourcedExample]:
    """The examples of these rows (see `locate`), in order. Raises DamagedPartError if one is not what it should be."""
    for row in rows.to_pylist():
        if row["key"] is None:
            raise DataError("the parts have not all of its examples")
        part, place = row["source"], records_place(normalized, row["source"])
        try:
            with place.open_input() as file:
                record = open_record(file.read_at(row["size"], row["offset"]), row["offset"], str(place))
        except FileNotFoundError:
            raise DamagedPartError(part, f"{place} is missing") from None
        except DataError as error:
            raise DamagedPartError(part, str(error)) from None
        if record.crc32c != row["crc32c"]:
            raise DamagedPartError(part, f"{place} does not have {row['key']} at the offset of its rows")
        yield record.data, part, row["sha256"]


def rebuild_table(name: str, target: Target) -> Iterator[pa.Table]:
    """The rows of a table beside the manifest, from the slices; of none, if later slices alone need it."""
    folder = target.slices.folder
    scans = (scan_slice(folder, split, each["name"])[0] for split, each in slices_of(target.manifest))
    if name == "examples":
        for _, rows, located in locate(target, ((scan.name, scan.rows()) for scan in scans)):
            yield (
                rows.drop_columns(["source", "sha256"])
                .append_column("source", located["source"])
                .append_column("sha256", located["sha256"])
            )
    elif name == "blocks":
        yield from (scan.blocks() for scan in scans)
    elif name == "class_counts":
        yield from (class_counts([scan.facts("")]) for scan in scans)
    else:
        yield TABLES[name].empty_table()

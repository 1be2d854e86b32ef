"""Rebuild what a check found damaged or missing from ``normalized`` and ``raw``, to the same bytes.

Each file is made beside the damaged one, compared with the SHA-256 that is recorded for it, and takes its place in one
atomic step: after a kill files are either as damaged as before or right.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError, EnvironmentFailure
from etl.formats import parquet_tables
from etl.images.config import NormalizeConfig
from etl.images.sandbox import DecodeWorker
from etl.normalized.part_writer import normalize_pack
from etl.normalized.parts import Origin, live_rows, read_record, read_rows, records_place
from etl.progress import log
from etl.raw.packs import RemovedRows
from etl.slices.manifest import TABLES, class_counts, located_slices, slices_of, table_file
from etl.slices.plan import ASSIGNMENTS_FILE, assign_rows
from etl.slices.writer import SourcedExample, index_of, order_key, scan_slice, write_slice
from etl.stages.layout import PARTS, normalized_stage
from etl.stages.stage import Stage
from etl.storage.atomic import publish_bytes, replace_file
from etl.storage.place import Place
from etl.verify.findings import Outcome, What
from etl.verify.target import Target

MAX_LINES = 20
OTHER_BYTES = "it came out with other bytes: was it made with other versions of the libraries?"

_WANTED = ["key", "sha256", "offset", "size", "crc32c"]  # of an example, from the rows of the parts

_NamedTable = tuple[str, pa.Table]  # of a slice, by its name
Thing = tuple[str, str]  # what it is, and its name
Files = Mapping[str, str | None]  # of a thing, by their paths below a folder: the SHA-256, None if none is recorded

_NO_REPAIR: dict[str, str] = {
    What.MANIFEST: "there is no other copy; put the original back, or run shard again with --overwrite",
    What.STRAY: "what is not known is not deleted; look at it, and remove it",
    What.REMOVED: "there is no other copy; put the original back",
    What.PACK: "it is the only copy of its images here; put the original back",
    What.LIST: "it is the only list of its pack's images here; put the original back",
    What.PARENT: "it is of the slices whose splits were kept; verify and repair those: ringslice verify --name NAME",
    What.INPUT: "the files are as they were written; run normalize again with --overwrite",
    What.KEY: "the files are as they were written; run shard again with --overwrite",
}


@contextmanager
def lease_for_repair(stage: Stage, fingerprint: str) -> Iterator[Place]:
    """Lease a finished stage, whose marker stays, in order to put its files right; gives the folder to write to.

    Raises EnvironmentFailure if another run is at work on it, or has replaced the generation that was checked.
    """
    with stage.lease() as run:
        if stage.find_generation(fingerprint) is None:
            raise EnvironmentFailure(f"another run has written {stage.marker} since it was checked; verify it again")
        yield run.staging


@dataclass
class Repair:
    """Repairs what checks of ``target`` find. ``repaired`` are the things put right, ``left`` why others were not."""

    target: Target
    repaired: list[Thing] = field(default_factory=list)
    left: dict[Thing, str] = field(default_factory=dict)

    def attempt(self, outcome: Outcome) -> bool:
        """Repair what can be repaired of these findings; returns whether anything was.

        Raises EnvironmentFailure if another run is at work on the slices or on the normalised images.
        """
        before = len(self.repaired)
        self._tidy()
        found = list(dict.fromkeys((each.what, each.name) for each in outcome.findings()))
        self.left |= {thing: _NO_REPAIR[thing[0]] for thing in found if thing[0] in _NO_REPAIR}
        self.left |= {thing: "it was made again, and is damaged once more" for thing in found if thing in self.repaired}
        todo = [thing for thing in found if thing not in self.left]
        for part in sorted({name for what, name in todo if what in (What.PART, What.ROWS, What.REJECTS)}):
            self._repair_part(part, [thing for thing in todo if thing[1] == part])
        own = [thing for thing in todo if thing[0] in (What.SLICE, What.INDEX, What.TABLE)]
        if own:
            with lease_for_repair(self.target.slices, self.target.fingerprint) as staging:
                self._repair_slices([name for what, name in own if what == What.SLICE], own, staging)
                self._repair_indexes([name for what, name in own if what == What.INDEX], staging)
                self._repair_tables([name for what, name in own if what == What.TABLE], staging)
        return len(self.repaired) > before

    def _tidy(self) -> None:
        """Remove what a repair that died left, if no run is at work."""
        for stage in (self.target.slices, normalized_stage(self.target.root)):
            if stage.marker.exists() and stage.work.exists() and not stage.plan.exists():
                with suppress(EnvironmentFailure), stage.lease():
                    pass

    def names(self) -> list[str]:
        """What was put right."""
        return [f"{what} {name}" for what, name in self.repaired]

    def explain(self) -> str:
        """Why what is left was not repaired, a line each, for the end of an error message."""
        lines = [f"{what} {name} is not repaired: {why}" for (what, name), why in sorted(self.left.items())]
        more = [f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
        return "".join(f"\n  {line}" for line in [*lines[:MAX_LINES], *more])

    def _put(self, thing: Thing, made: Place, folder: Place, files: Files) -> None:
        """Put ``files`` that were made below ``made`` in place below ``folder``, if each has its SHA-256."""
        if any(sha256 is not None and (made / file).sha256() != sha256 for file, sha256 in files.items()):
            self.left[thing] = OTHER_BYTES
            return
        for file in files:
            replace_file(made / file, folder / file)
        self.repaired.append(thing)
        log("verify", f"{thing[0]} {thing[1]} is rebuilt")

    def _repair_part(self, name: str, things: Sequence[Thing]) -> None:
        """Normalise a pack once more, beside its part, and take what is damaged from there."""
        target, stage = self.target, normalized_stage(self.target.root)
        assert target.dataset is not None
        entry = next(part for part in target.dataset.entries if part["part"] == name)
        with lease_for_repair(stage, target.dataset.fingerprint) as staging:
            made = staging / "made"
            try:
                _normalize_again(target.root, made, entry, target.dataset.marker, staging)
            except (DataError, FileNotFoundError) as error:
                self.left |= dict.fromkeys(things, f"its pack is damaged too: {error}")
                return
            for thing in things:
                self._put(thing, made, stage.folder, _part_files(thing[0], entry))
            made.delete()

    def _repair_slices(self, names: Sequence[str], things: Sequence[Thing], staging: Place) -> None:
        """Write slices once more, from the records of the parts, and put them and their indexes in place."""
        if names and self.target.dataset is None:
            why = "the normalised images that it was made from are not here"
            self.left |= {(What.SLICE, name): why for name in names}
            return
        try:
            if (What.TABLE, table_file("examples")) in things:
                keys = _planned_keys(self.target, names, staging)
            else:
                keys = _recorded_keys(self.target, names)
            for name, _, rows in _locate(self.target, keys) if names else ():
                self._repair_slice(name, rows, staging)
        except (DataError, FileNotFoundError) as error:
            left = [(What.SLICE, name) for name in names if (What.SLICE, name) not in self.repaired]
            self.left = dict.fromkeys(left, str(error)) | self.left

    def _repair_slice(self, name: str, rows: pa.Table, staging: Place) -> None:
        """Write a slice once more, after each damaged part that it needs; if one stays so, the slice is left."""
        while True:
            try:
                self._write_again(name, rows, staging)
                return
            except _DamagedPartError as error:
                part, before = (What.PART, error.part), len(self.repaired)
                if part not in self.repaired:
                    self._repair_part(error.part, [part])
                if len(self.repaired) == before:
                    self.left[What.SLICE, name] = f"{error.part} is damaged too: {error}"
                    return

    def _write_again(self, name: str, rows: pa.Table, staging: Place) -> None:
        split, entry = self.target.find_slice(name)
        made, folder = staging / "made", self.target.slices.folder
        made.delete()
        examples = _read_located(self.target.root / "normalized", rows)
        write_slice(made, staging, (split, name, entry["records"]), examples)
        self._put((What.SLICE, name), made, folder, {f"{name}.tfrecord": entry["sha256"], f"{name}.idx": None})
        made.delete()

    def _repair_indexes(self, names: Sequence[str], staging: Place) -> None:
        folder = self.target.slices.folder
        for name in names:
            if (What.SLICE, name) in self.left:
                self.left[What.INDEX, name] = "its slice is damaged"
            elif (What.SLICE, name) not in self.repaired:  # with its slice its index came too
                scan, _ = scan_slice(folder, self.target.find_slice(name)[0], name)
                made, file = staging / "made", f"{name}.idx"
                publish_bytes(made / file, staging, index_of(scan.rows()))
                self._put((What.INDEX, name), made, folder, {file: None})

    def _repair_tables(self, files: Sequence[str], staging: Place) -> None:
        """Rebuild tables from the slices, which must all be right by now."""
        damaged = [name for what, name in self.left if what == What.SLICE]
        tables = {entry["file"]: (name, entry) for name, entry in self.target.manifest["tables"].items()}
        for file in files:
            name, entry = tables[file]
            if damaged:
                self.left[What.TABLE, file] = f"{damaged[0]} is damaged and could not be repaired"
            elif name in ("departed", "contents", "groups") and entry["rows"]:
                self.left[What.TABLE, file] = "there is no other copy of what earlier slices had; put the original back"
            elif name == "examples" and self.target.dataset is None:
                self.left[What.TABLE, file] = "the normalised images that its examples come from are not here"
            else:
                made, rows = staging / "made", _rebuild_table(name, self.target)
                parquet_tables.write_tables(made / file, staging, TABLES[name], rows)
                self._put((What.TABLE, file), made, self.target.slices.folder, {file: entry["sha256"]})


def _part_files(what: str, entry: dict[str, Any]) -> Files:
    """The files of a part, below `normalized`."""
    records, rows, *of_rejects = PARTS.files(entry)
    if what == What.PART:
        return {records: entry["sha256"]}
    if what == What.ROWS:
        return {rows: entry["rows_sha256"]}
    return dict(zip(of_rejects, (entry["rejects"]["sha256"], entry["rejects"]["list_sha256"]), strict=True))


def _normalize_again(root: Place, made: Place, entry: dict[str, Any], dataset: dict[str, Any], staging: Place) -> None:
    """Normalise the pack of a part as it was done, into the folder ``made``.

    Since then the class list may have grown at its end; the part's facts are as long as it was. And rejects may have
    been tried again with looser limits; the part records its own.
    """
    made.delete()
    classes = next((len(by_label) for by_label in entry["examples"].values()), len(dataset["classes"]))
    own_limits = {"limits": entry["limits"]} if "limits" in entry else {}
    with DecodeWorker(NormalizeConfig.from_json(dataset["config"] | own_limits)) as worker:
        own, names = Origin.of_part(entry), dataset["classes"][:classes]
        normalize_pack(root / "raw", made, own, worker, classes=names, staging=staging)


class _DamagedPartError(DataError):
    """A part that differs from its rows; ``part`` names it."""

    def __init__(self, part: str, line: str) -> None:
        super().__init__(line)
        self.part = part


def _recorded_keys(target: Target, names: Sequence[str]) -> Iterator[_NamedTable]:
    """The keys of these slices, in their order, by the table of examples."""
    place = target.slices.folder / table_file("examples")
    for _, entry, first, _ in located_slices(target.manifest):
        if entry["name"] in names:
            yield entry["name"], parquet_tables.read_range(place, first, first + entry["records"], ["key"])


def _planned_keys(target: Target, names: Sequence[str], staging: Place) -> Iterator[_NamedTable]:
    """As `_recorded_keys`, by a new plan; ``staging`` is where that may write."""
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


def _locate(target: Target, tables: Iterable[_NamedTable]) -> Iterator[tuple[str, pa.Table, pa.Table]]:
    """Named tables (column key), and with each the live rows of its keys, in their order: `_WANTED`, and ``source``,
    their part; null for an unknown key. Memory goes with the number of keys.
    """
    assert target.dataset is not None
    named = list(tables)
    keys = pa.concat_tables([table.select(["key"]) for _, table in named])["key"]
    removed, found = RemovedRows.read(target.root, target.dataset.marker), list[pa.Table]()
    read, waiting = list[pa.Table](), 0
    for part in target.dataset.entries:
        rows = live_rows(target.root / "normalized", part, removed, _WANTED)
        read.append(rows.append_column("source", pa.repeat(part["part"], rows.num_rows)))
        waiting += rows.num_rows
        if waiting > len(keys):  # all keys are hashed for each search
            found.append(_with_keys(read, keys))
            read, waiting = [], 0
    rows = pa.concat_tables([*found, _with_keys(read, keys)] if read else found).combine_chunks()
    rows = rows.take(pc.index_in(keys, value_set=rows["key"]))
    for name, table in named:
        yield name, table, rows.slice(0, table.num_rows)
        rows = rows.slice(table.num_rows)


def _with_keys(tables: Sequence[pa.Table], keys: pa.ChunkedArray) -> pa.Table:
    rows = pa.concat_tables(tables)
    return rows.filter(pc.is_in(rows["key"], value_set=keys))


def _read_located(normalized: Place, rows: pa.Table) -> Iterator[SourcedExample]:
    """The examples of these rows (see `_locate`), in order. Raises _DamagedPartError if one is not as it should be."""
    for row in rows.to_pylist():
        if row["key"] is None:
            raise DataError("the parts have not all of its examples")
        part, place = row["source"], records_place(normalized, row["source"])
        try:
            record = read_record(place, row["offset"], row["size"])
            if record.crc32c != row["crc32c"]:
                raise DataError(f"{place} does not have {row['key']} at the offset of its rows")
        except (DataError, FileNotFoundError) as error:
            line = f"{place} is missing" if isinstance(error, FileNotFoundError) else str(error)
            raise _DamagedPartError(part, line) from None
        yield record.data, part, row["sha256"]


def _rebuild_table(name: str, target: Target) -> Iterator[pa.Table]:
    """The rows of a table beside the manifest, from the slices; of none, if later slices alone need it."""
    folder = target.slices.folder
    scans = (scan_slice(folder, split, each["name"])[0] for split, each in slices_of(target.manifest))
    if name == "examples":
        for _, rows, located in _locate(target, ((scan.name, scan.rows()) for scan in scans)):
            yield pa.table([*rows.columns[:-2], located["source"], located["sha256"]], schema=TABLES[name])
    elif name == "blocks":
        yield from (scan.blocks() for scan in scans)
    elif name == "class_counts":
        yield from (class_counts([scan.facts("")]) for scan in scans)
    else:
        yield TABLES[name].empty_table()

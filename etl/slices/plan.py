"""The plan of a set of slices: which images are examples, of which split and slice; and the list of work that follows.

If every image goes to its source's split, the counts in the facts of the parts are enough and no row is read. Else the
rows of all images decide (`etl.slices.split_assignment`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.errors import UsageError
from etl.formats import parquet_tables, schemas
from etl.normalized.parts import live_facts, pack_of, read_rows
from etl.partition.config import DEFAULT_SPLIT, OPTIONS, SOURCE_SPLIT, ShardConfig, parse_split, resolve_slices
from etl.partition.shares import PartCounts, SlicePlan, count_part, split_sizes
from etl.progress import log
from etl.raw.packs import RemovedRows
from etl.slices.group_assignment import GroupConflict
from etl.slices.history import (
    NEWEST,
    RETIRED_TABLES,
    ParentSlices,
    SplitHistory,
    describe_unknown,
    find,
    list_sha256,
    read_keys,
    split_numbers,
)
from etl.slices.images import Rules
from etl.slices.manifest import TABLES
from etl.slices.split_assignment import SplitAssignment, assign_splits
from etl.stages.marker import Generation
from etl.stages.stage import Stage
from etl.storage.atomic import replace_bytes, replace_file
from etl.storage.place import Place, open_place

ASSIGNMENTS_FILE = "assignments.parquet"  # in the work folder of a job whose tasks go by them


@dataclass(frozen=True)
class Plan:
    """A plan for the parts of ``normalized``. Without ``assignment`` their facts are all that is needed.

    ``history`` are the tables of what later slices need to know, by name (`SplitHistory.retired_tables`).
    """

    config: ShardConfig
    normalized: Generation
    slice_plan: SlicePlan
    assignment: SplitAssignment | None
    history: Mapping[str, pa.Table]

    @property
    def known(self) -> dict[str, int]:
        """How many examples were known before, by how."""
        all_new = {"kept": 0, "moved": 0, "changed": 0, "new": int(self.slice_plan.sizes.sum()), "disagreeing": 0}
        return self.assignment.known if self.assignment else all_new

    @property
    def left_out(self) -> dict[str, int]:
        """Live images that are not examples, by cause."""
        return self.assignment.left_out if self.assignment else {"removed_keys": 0, "duplicates": 0}

    def write_assignment(self, place: Place, staging: Place) -> Place | None:
        """Write the table of assignments to ``place``, and return that; None if tasks need none.

        One that is there stays if it is the same, because tasks of a job that runs already may read it; else it is
        replaced in one step.
        """
        if self.assignment is None:
            return None
        made = staging / "assignments"
        output, _ = parquet_tables.write_tables(made, staging, schemas.ASSIGNMENTS, self.assignment.tables())
        if place.exists() and place.sha256() == output.sha256:
            made.delete()
        else:
            replace_file(made, place)
        return place

    def __len__(self) -> int:
        return len(self.normalized.entries)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The list of work: for each part what a mapper needs to assign it, see `assign_rows`."""
        row = 0
        counts = _count_parts(self.normalized, self.assignment)
        columns = (self.normalized.entries.column(name) for name in ("part", "records", "rows_sha256"))
        for part, number, rows_sha256, first in zip(*columns, self.slice_plan.firsts(counts), strict=True):
            yield {"part": part, "first": first, "row": row, "rows_sha256": rows_sha256}
            row += number


def make_plan(root: Place, values: Mapping[str, Any], normalized: Generation, parent: ParentSlices | None) -> Plan:
    """The plan for these option values; ``parent`` are the slices whose splits are kept. Logs what is remarkable.

    Raises DataError or UsageError if images and options do not fit. Of images in conflict with their group all keys are
    left in a file, with those that were listed, for --remove.
    """
    listed = _listed(values)
    try:
        plan = plan_slices(root, values, normalized, parent, listed)
    except GroupConflict as conflict:
        file = (root / "slices").make_folder() / f"{values['name']}.conflicts.txt"
        keys = "".join(f"{key}\n" for key in [*conflict.keys, *(listed or ())])
        replace_bytes(file, file.parent, keys.encode("utf-8-sig" if keys.startswith("\ufeff") else "utf-8"))
        raise GroupConflict(f"{conflict} {file}", conflict.keys) from None
    if listed:
        _report_unknown(listed, values["remove"], parent, plan.assignment)
    if plan.assignment and (number := plan.assignment.known["disagreeing"]):
        log("shard", f"{number} images were moved and changed at once, and are where their content or group is")
    return plan


def is_done_before(stage: Stage, values: Mapping[str, Any], normalized: Generation) -> bool:
    """True if 'newest' asks for slices that are finished, of this ``normalized``.

    What they were made from may be gone, and then they could not be planned again.
    """
    if values["splits_from"] != NEWEST or not stage.marker.exists() or stage.work.exists():
        return False
    manifest = stage.read_marker()
    if manifest["input"] != normalized.fingerprint or manifest["lineage"] is None:
        return False
    config = ShardConfig(**manifest["config"])
    sizes = {name: split["records"] for name, split in manifest["splits"].items()}
    asked = _requested(values, normalized, _listed(values))
    return replace(config, **asked, slices=_resolve_slices(sizes, normalized, values)) == config


def plan_slices(
    root: Place,
    values: Mapping[str, Any],
    normalized: Generation,
    parent: ParentSlices | None,
    listed: Sequence[str] | None,
) -> Plan:
    """The plan for these option values, without the keys that are ``listed``.

    Raises DataError or UsageError if images and options do not fit.
    """
    _refuse_other_groups(values["group_by"], parent)
    asked = _requested(values, normalized, listed, is_new=True)
    config = ShardConfig(**asked, slices={}, splits_from=parent.fingerprint if parent else None)
    history = parent.history if parent else SplitHistory.empty()
    removed = history.removed.union(listed or ())
    assignment = None
    if config.split != SOURCE_SPLIT or parent or removed or config.drop_duplicates or normalized.marker["removed"]:
        rules = Rules(config, len(normalized.marker["classes"]), history, removed)
        assignment = assign_splits(rules, _live_parts(root, normalized))
    total = sum(_count_parts(normalized, assignment), np.zeros((1, 1), dtype=np.int64))
    config = replace(config, slices=_resolve_slices(split_sizes(total), normalized, values))
    is_stratified = config.is_stratified
    slice_plan = SlicePlan.of(total, config.slices, config.seed, is_stratified=is_stratified)
    retired = assignment.retired if assignment else {name: TABLES[name].empty_table() for name in RETIRED_TABLES}
    return Plan(config, normalized, slice_plan, assignment, retired)


def assign_rows(
    plan: SlicePlan, rows: pa.Table, task: Mapping[str, Any], assignments: Place | None
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int64]]:
    """Split (its number in SPLIT_NAMES) and slice (numbered through) of each row (columns label, split) of the part of
    ``task``; the slice of one that is left out is -1, its split negative.

    ``assignments`` is the table of splits, if there is one; else the rows have them.
    """
    if assignments is not None:
        splits = parquet_tables.read_range(assignments, task["row"], task["row"] + len(rows))["split"].to_numpy()
    else:
        splits = split_numbers(rows["split"])
    there, slices = splits >= 0, np.full(len(rows), -1, dtype=np.int64)
    labels = rows["label"].to_numpy()[there].astype(np.int64)
    firsts = {int(stratum): rank for stratum, rank in task["first"].items()}
    slices[there] = plan.assign(labels, splits[there].astype(np.int64), firsts)
    return splits, slices


def _listed(values: Mapping[str, Any]) -> list[str] | None:
    """The keys in the list of --remove, if one is given."""
    return read_keys(open_place(values["remove"])) if values["remove"] else None


def _requested(
    values: Mapping[str, Any], normalized: Generation, listed: Sequence[str] | None, *, is_new: bool = False
) -> dict[str, Any]:
    """The fields of `ShardConfig` that the option values decide for ``normalized``, whatever the earlier slices are.

    The default of ``split`` is the source's own if every live image has one. Of slices that are new it is logged if the
    splits that images have are not used.
    """
    split = parse_split(DEFAULT_SPLIT) if values["split"] is None else values["split"]
    if values["split"] is None:
        stated = {name for part in normalized.entries for name in live_facts(part)["examples"]}
        if all(stated) and values["group_by"] is None:
            split = SOURCE_SPLIT
        elif any(stated) and is_new:
            why = "not every image has a split of the source's own"
            if values["group_by"] is not None:
                why = "the source's own splits are not used with --group-by"
            log("shard", f"{why}: --split {DEFAULT_SPLIT} is used for all")
    removed_keys = list_sha256(listed) if listed is not None else None
    return {name: values[name] for name in OPTIONS} | {"split": split, "removed_keys": removed_keys}


def _resolve_slices(sizes: Mapping[str, int], normalized: Generation, values: Mapping[str, Any]) -> dict[str, int]:
    """How many slices each split gets; ``sizes`` are the examples of each."""
    size_bytes, records = (sum(normalized.entries.column(name)) for name in ("bytes", "records"))
    size_bytes = size_bytes * sum(sizes.values()) // max(records, 1)
    return resolve_slices(sizes, size_bytes, values["workers"], values["slices"], values["slice_size"])


def _refuse_other_groups(asked: str | None, parent: ParentSlices | None) -> None:
    """Raise UsageError if earlier slices were grouped by a column, and these would not be."""
    before = parent.marker["config"]["group_by"] if parent else None
    if before is not None and asked != before:
        raise UsageError(
            f"--splits-from: those slices keep each {before!r} in one split; give --group-by {before} too,"
            " or leave --splits-from out to assign all splits again"
        )


def _report_unknown(
    listed: list[str], file: str, parent: ParentSlices | None, assignment: SplitAssignment | None
) -> None:
    """Log the keys of --remove that nothing has or had. Raises UsageError if these are all."""
    unknown = [key for key in listed if assignment is None or key not in assignment.removed]
    if parent:
        had_split = parent.history.keys.filter(pa.array(parent.history.key_splits >= 0))
        places = find(pa.chunked_array([unknown], pa.string()), had_split).tolist()
        unknown = [key for key, place in zip(unknown, places, strict=True) if place < 0]
    if not unknown:
        return
    line = describe_unknown(unknown, listed)
    if len(unknown) == len(listed):
        raise UsageError(f"--remove {file}: {line}; give keys as examples.parquet has them, one on each line")
    log("shard", f"--remove {file}: {line}")


def _count_parts(normalized: Generation, assignment: SplitAssignment | None) -> Iterator[PartCounts]:
    if assignment:
        return assignment.counts()
    classes = len(normalized.marker["classes"])
    return (count_part(examples, classes) for examples in normalized.entries.column("examples"))


def _live_parts(root: Place, normalized: Generation) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
    removed = RemovedRows.read(root, normalized.marker)
    for part in normalized.entries:
        rows = read_rows(root / "normalized", part["part"], schemas.IMAGE_COLUMNS)
        yield rows, removed.live(pack_of(part), rows["key"])

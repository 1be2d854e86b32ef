"""A verification as its driver sees it: from the results of all tasks together.

If the normalised images that the slices were made from are gone (`ringslice erase` deletes them), a new plan cannot be
made. The slices whose splits were kept then have those of their keys, contents and groups.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.normalized.erased import read_record
from etl.partition.config import SOURCE_SPLIT
from etl.partition.shares import Integers
from etl.slices.history import (
    RETIRED_TABLES,
    Bits,
    SplitHistory,
    find,
    removed_of,
    split_numbers,
    splits_of_groups,
)
from etl.slices.manifest import table_file
from etl.slices.plan import Plan
from etl.storage.place import Place
from etl.verify.expected import marker_findings, statistics_findings
from etl.verify.findings import Finding, KeyFault, KeyFindings, Outcome, What, marker_fault, table_difference
from etl.verify.join import CONTENTS, RETIRED_KEYS, LineResult, Reconciler, key_buckets, read_rows
from etl.verify.target import Line, Target

DUPLICATES_FILE = "duplicates.parquet"


@dataclass(frozen=True)
class CheckResults:
    """All that the tasks of one check published, by line of work, and what is compared across them."""

    target: Target
    folder: Place
    results: dict[int, LineResult]
    reconciler: Reconciler

    @classmethod
    def read(cls, target: Target, lines: Sequence[Line], folder: Place) -> "CheckResults":
        """What is in ``folder``. Raises EnvironmentFailure if something is missing though the tasks ended."""
        results = {line["line"]: LineResult.read_published(folder, line["line"]) for line in lines}
        config = target.manifest["config"]
        by_source = config["split"] == SOURCE_SPLIT and not config["splits_from"]
        rules = (bool(config["drop_duplicates"]), by_source, config["group_by"] is not None)
        return cls(target, folder, results, Reconciler(target.slice_names, *rules))

    def reconcile(self, buckets: int) -> Iterator[pa.Table]:
        """Compare all buckets; gives the rows of `DUPLICATES`, in their order."""
        try:
            retired = parquet_tables.read_table(self.target.slices.folder / table_file("departed"), RETIRED_KEYS.names)
        except (DataError, FileNotFoundError):  # found by its SHA-256, or by what the plan gives
            retired = RETIRED_KEYS.empty_table()
        retired_buckets = key_buckets(retired, buckets)
        for bucket in range(buckets):
            found, good = (read_rows(self.folder, self.results, name, bucket) for name in ("found", "good"))
            self.reconciler.check_keys(found, good, retired.filter(retired_buckets == bucket))
        self.reconciler.check_groups(self.target.manifest["config"]["group_by"])
        for bucket in range(buckets):
            yield self.reconciler.check_contents(read_rows(self.folder, self.results, CONTENTS, bucket))

    def outcome(self, plan: Plan | None, why_unplanned: str = "") -> Outcome:
        """What it all says, after `reconcile`. ``plan`` is that of the slices, made again, or None, and why.

        If there is no plan because something is damaged, that is found elsewhere; else the config is wrong.
        """
        target, keys, results = self.target, self.reconciler.findings, self.results.values()
        total = LineResult()
        for result in results:
            total.counts.update(result.counts)
            total.unreadable.update(result.unreadable)
            total.live.update(result.live)
        found = dict[tuple[str, str], Finding]()  # one for each file, however many tasks came upon it
        for each in (each for result in results for each in result.findings):
            found.setdefault((each.what, each.name), each)
        files = list(found.values())
        self._drop_doubtful(files, total.unreadable)
        if target.dataset is None:
            _find_erased(target, keys)
            files += _history_findings(target, keys)
        facts = [facts for result in results for facts in result.slices]
        known_facts = None if None in facts else [each for each in facts if each is not None]
        of_markers = marker_findings(target, plan, known_facts, None if total.unreadable["lists"] else total.live)
        files += (each for each in of_markers if each.what != What.TABLE or (What.TABLE, each.name) not in found)
        is_sound = not (files or +total.unreadable or keys.counts)
        if target.dataset is not None and is_sound:
            files += statistics_findings(target.manifest, self.reconciler.pixels, self.reconciler.left_out)
        if why_unplanned and not files and is_sound:
            files.append(marker_fault(f"the config does not give these slices: {why_unplanned}"))
        return Outcome(files, keys, dict(sorted(total.counts.items())), self.reconciler.duplicates)

    def _drop_doubtful(self, files: Sequence[Finding], unreadable: Counter[str]) -> None:
        """Drop what may only seem to be wrong with keys because something cannot be read."""
        whats, keys = {(each.what, each.name) for each in files}, self.reconciler.findings
        if unreadable["slices"] or (What.TABLE, table_file("departed")) in whats:
            keys.drop((KeyFault.MISSING, KeyFault.RETIRED))
        if unreadable["parts"] or self.target.dataset is None:
            keys.drop((KeyFault.UNKNOWN, KeyFault.MISSING))
        if (What.TABLE, table_file("examples")) in whats and any(what == What.SLICE for what, _ in whats):
            keys.drop(list(keys.counts))


def _find_erased(target: Target, keys: KeyFindings) -> None:
    """Add to ``keys`` the examples whose contents were erased elsewhere below the root."""
    erased = read_record(target.root)["sha256"].combine_chunks()
    line = "was erased, and is still here; make other slices, and delete these"
    try:
        groups = parquet_tables.iterate_groups(target.slices.folder / table_file("examples"), ["key", "sha256"])
        for table in groups if len(erased) else ():
            here = table.filter(pc.is_in(table["sha256"], value_set=erased))
            keys.add(KeyFault.RETIRED, here, lambda row: f"{row['key']} {line}")
    except (DataError, FileNotFoundError):  # found by its SHA-256
        return


def _history_findings(target: Target, keys: KeyFindings) -> Iterator[Finding]:
    """Compare splits with those of the parent slices: of examples (added to ``keys``), and of what is recorded of
    others. Memory goes with the number of examples, as for a plan.
    """
    if target.parent is None:
        return
    folder = target.slices.folder
    try:
        history = target.parent.history
        examples = parquet_tables.read_table(folder / table_file("examples"), ["key", "split", "sha256"])
        recorded = {name: parquet_tables.read_table(folder / table_file(name)) for name in RETIRED_TABLES}
    except (DataError, FileNotFoundError, pa.ArrowException):  # found by its SHA-256
        return
    splits = split_numbers(examples["split"])
    places, contents = find(examples["key"], history.keys), find(examples["sha256"], history.contents)
    had = _had(target, history, places, contents, examples["sha256"])
    moved = np.flatnonzero((had & np.left_shift(1, splits).astype(np.uint8) == 0) & (had > 0))
    due_split = "not that of the slices whose splits were kept"
    rows = examples.take(pa.array(moved))
    keys.add(KeyFault.DIFFERENT, rows, lambda row: f"{row['key']}: split is {row['split']}, {due_split}")
    removed = history.removed.union(removed_of(recorded["departed"]))
    groups = splits_of_groups(recorded["groups"]) | dict(history.groups)
    due = history.retired_tables(places, contents, splits, removed=removed, groups=groups)
    for name, table in due.items():
        if line := table_difference(table, recorded[name]):
            yield marker_fault(f"{table_file(name)} is not what the slices whose splits were kept give: {line}")


def _had(
    target: Target, history: SplitHistory, places: Integers, places_of_content: Integers, contents: pa.ChunkedArray
) -> Bits:
    """The splits that each example may be in, 0 if any: those of its content, else that of its key.

    By its key alone only if no group and no other image of its content, which may have been left out, has a say.
    """
    config, had = target.manifest["config"], np.zeros(len(places), dtype=np.uint8)
    if config["group_by"] is None and not config["drop_duplicates"]:
        copies = contents.combine_chunks().dictionary_encode().indices.to_numpy()
        by_key = (places >= 0) & (np.bincount(copies)[copies] == 1)
        by_key[by_key] = history.key_splits[places[by_key]] >= 0
        had[by_key] = np.left_shift(1, history.key_splits[places[by_key]]).astype(np.uint8)
    known = places_of_content >= 0
    had[known] = history.content_splits[places_of_content[known]]
    return had

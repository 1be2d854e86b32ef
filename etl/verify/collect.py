"""A verification as its driver sees it: what is checked, the list of work, and what all results together say."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.errors import DataError, EnvironmentFailure
from etl.formats import parquet_tables
from etl.normalized.erased import erased_config, read_record
from etl.slices.manifest import table_file
from etl.slices.plan import Plan
from etl.stages.layout import normalized_stage
from etl.storage.place import Place
from etl.verify.expected import (
    class_count_findings,
    dataset_findings,
    fault,
    manifest_findings,
    memory_findings,
    raw_findings,
    statistics_findings,
    stray_findings,
)
from etl.verify.findings import (
    DEPARTED,
    MANIFEST,
    MAX_KEYS,
    MISSING,
    SLICE,
    TABLE,
    UNKNOWN,
    Finding,
    KeyFindings,
    Outcome,
)
from etl.verify.join import CONTENTS, GONE, TABLES, Reconciler, key_buckets, read_bucket
from etl.verify.target import Target
from etl.verify.task import table_place, task_place
from etl.verify.work_list import Line

DUPLICATES_FILE = "duplicates.parquet"


@dataclass(frozen=True)
class Collected:
    """All that the tasks of one check published, and what is compared across them.

    Raises EnvironmentFailure if something of it is not there though the tasks ended.
    """

    target: Target
    results: Place
    tasks: list[dict[str, Any]]
    reconciler: Reconciler

    @classmethod
    def read(cls, target: Target, lines: Sequence[Line], results: Place) -> "Collected":
        tasks = [_read_result(task_place(results, line["line"])) | {"line": line["line"]} for line in lines]
        grouped = target.manifest["config"]["group_by"] is not None
        return cls(target, results, tasks, Reconciler(target.slice_names, target.dropped, target.by_source, grouped))

    def reconcile(self, buckets: int) -> Iterator[pa.Table]:
        """Compare all buckets; gives the rows of `DUPLICATES`, in their order."""
        try:
            gone = parquet_tables.read_table(self.target.slices.folder / table_file("departed"), GONE.names)
        except (DataError, FileNotFoundError):  # found by its SHA-256, or by what the plan gives
            gone = GONE.empty_table()
        gone_buckets = key_buckets(gone, buckets)
        for bucket in range(buckets):
            found, good = (self._bucket(name, bucket) for name in ("found", "good"))
            self.reconciler.check_keys(found, good, gone.filter(gone_buckets == bucket))
        self.reconciler.check_groups(self.target.manifest["config"]["group_by"])
        for bucket in range(buckets):
            yield self.reconciler.check_contents(self._bucket(CONTENTS, bucket))

    def _bucket(self, name: str, bucket: int) -> pa.Table:
        tasks = [task for task in self.tasks if name in task["rows"]]
        files = [(table_place(self.results, name, task["line"]), task["rows"][name]) for task in tasks]
        return read_bucket(TABLES[name], files, bucket)

    def outcome(self, plan: Plan | None, why_unplanned: str = "") -> Outcome:
        """What it all says, after `reconcile`. ``plan`` is that of the slices, made again, or None, and why.

        If there is no plan because something is damaged, that is found elsewhere; else the config is wrong.
        """
        target, files = self.target, self._file_findings()
        unreadable, counts, live = (self._sum(name) for name in ("unreadable", "counts", "live"))
        keys = self._trusted_keys(files, unreadable)
        if target.dataset is None:
            self._find_erased(keys)
        files += self._marker_findings(plan, live if not unreadable["lists"] else None, files)
        is_sound = not (files or +unreadable or keys.counts)
        if target.dataset is not None and is_sound:
            files += statistics_findings(target.manifest, self.reconciler.pixels, self.reconciler.left_out)
        if why_unplanned and not files and is_sound:
            files.append(fault(f"the config does not give these slices: {why_unplanned}"))
        return Outcome(files, keys, dict(sorted(counts.items())), self.reconciler.duplicates)

    def _sum(self, name: str) -> Counter[str]:
        return sum((Counter(task[name]) for task in self.tasks), Counter[str]())

    def _marker_findings(
        self, plan: Plan | None, live: Mapping[str, int] | None, known: Sequence[Finding]
    ) -> Iterator[Finding]:
        """Where markers are not what they can be computed from; ``live`` images are None if a list is damaged."""
        target = self.target
        facts = [facts for task in self.tasks for facts in task["slices"]]
        whole = facts if None not in facts else None
        yield from stray_findings(target.slices, target.manifest)
        yield from manifest_findings(target.manifest, whole, target.dataset, plan, target.earlier)
        yield from memory_findings(target.slices.folder, target.manifest, plan) if plan else ()
        if whole is not None and (TABLE, table_file("class_counts")) not in {(each.what, each.name) for each in known}:
            yield from class_count_findings(target.slices.folder, whole)
        if target.dataset is not None:
            yield from dataset_findings(target.dataset, target.raw)
        elif erased_config(target.root, target.manifest["input"]) is None:
            line = (
                f"{target.slices.marker} names other normalised images than"
                f" {normalized_stage(target.root).folder} has or had: were the slices copied from another root?"
            )
            yield Finding(MANIFEST, target.slices.marker_name, line)
        if target.raw is not None and target.dataset is not None:
            yield from raw_findings(target.raw, target.dataset, live)

    def _find_erased(self, keys: KeyFindings) -> None:
        """Add to ``keys`` the examples whose contents were erased elsewhere below the root."""
        erased = read_record(self.target.root)["sha256"].combine_chunks()
        try:
            groups = parquet_tables.iterate_groups(
                self.target.slices.folder / table_file("examples"), ["key", "sha256"]
            )
            for table in groups if len(erased) else ():
                here = table["key"].filter(pc.is_in(table["sha256"], value_set=erased)).to_pylist()
                line = "was erased, and is still here; run: ringslice erase --slices"
                keys.add(DEPARTED, len(here), [(key, f"{key} {line}") for key in here[:MAX_KEYS]])
        except (DataError, FileNotFoundError):  # found by its SHA-256
            return

    def _file_findings(self) -> list[Finding]:
        """One for each file, however many tasks came upon it."""
        found: dict[tuple[str, str], Finding] = {}
        for task in self.tasks:
            for each in task["findings"]:
                found.setdefault((each["what"], each["name"]), Finding(**each))
        return list(found.values())

    def _trusted_keys(self, files: Sequence[Finding], unreadable: Mapping[str, int]) -> KeyFindings:
        """What is wrong with keys, less what may only seem so because something cannot be read."""
        whats = {(each.what, each.name) for each in files}
        if (TABLE, table_file("examples")) in whats and any(what == SLICE for what, _ in whats):
            return KeyFindings()
        doubtful = set[str]()
        if unreadable["slices"] or (TABLE, table_file("departed")) in whats:
            doubtful |= {MISSING, DEPARTED}
        if unreadable["parts"] or self.target.dataset is None:
            doubtful |= {UNKNOWN, MISSING}
        return self.reconciler.findings.without(*doubtful)


def _read_result(place: Place) -> dict[str, Any]:
    if not place.exists():
        raise EnvironmentFailure(f"{place} is missing though the job ended; run again")
    return place.read_json()

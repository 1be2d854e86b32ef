"""A verification as its driver sees it: what is checked, the list of work, and what all results together say."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from etl.errors import DataError, EnvironmentFailure
from etl.formats import parquet_tables
from etl.partition.config import SOURCE_SPLIT
from etl.slices.manifest import table_file
from etl.slices.plan import Plan
from etl.storage.place import Place
from etl.verify.expected import marker_findings, statistics_findings
from etl.verify.findings import DEPARTED, MISSING, SLICE, TABLE, UNKNOWN, Finding, Outcome, marker_fault
from etl.verify.join import CONTENTS, GONE, TABLES, Reconciler, key_buckets, read_bucket
from etl.verify.target import Target
from etl.verify.task import table_place, task_place
from etl.verify.without_images import find_erased, history_findings
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
        config = target.manifest["config"]
        by_source = config["split"] == SOURCE_SPLIT and not config["splits_from"]
        rules = (bool(config["drop_duplicates"]), by_source, config["group_by"] is not None)
        return cls(target, results, tasks, Reconciler(target.slice_names, *rules))

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
        target, keys = self.target, self.reconciler.findings
        unreadable, counts, live = map(self._sum, ("unreadable", "counts", "live"))
        found = dict[tuple[str, str], Finding]()  # one for each file, however many tasks came upon it
        for each in (each for task in self.tasks for each in task["findings"]):
            found.setdefault((each["what"], each["name"]), Finding(**each))
        files = list(found.values())
        self._drop_doubtful(files, unreadable)
        if target.dataset is None:
            find_erased(target, keys)
            files += history_findings(target, keys)
        facts = [facts for task in self.tasks for facts in task["slices"]]
        of_markers = marker_findings(
            target, plan, None if None in facts else facts, None if unreadable["lists"] else live
        )
        files += (each for each in of_markers if each.what != TABLE or (TABLE, each.name) not in found)
        is_sound = not (files or +unreadable or keys.counts)
        if target.dataset is not None and is_sound:
            files += statistics_findings(target.manifest, self.reconciler.pixels, self.reconciler.left_out)
        if why_unplanned and not files and is_sound:
            files.append(marker_fault(f"the config does not give these slices: {why_unplanned}"))
        return Outcome(files, keys, dict(sorted(counts.items())), self.reconciler.duplicates)

    def _sum(self, name: str) -> Counter[str]:
        return sum((Counter(task[name]) for task in self.tasks), Counter[str]())

    def _drop_doubtful(self, files: Sequence[Finding], unreadable: Mapping[str, int]) -> None:
        """Drop what may only seem to be wrong with keys because something cannot be read."""
        whats, keys = {(each.what, each.name) for each in files}, self.reconciler.findings
        if unreadable["slices"] or (TABLE, table_file("departed")) in whats:
            keys.drop((MISSING, DEPARTED))
        if unreadable["parts"] or self.target.dataset is None:
            keys.drop((UNKNOWN, MISSING))
        if (TABLE, table_file("examples")) in whats and any(what == SLICE for what, _ in whats):
            keys.drop(list(keys.counts))


def _read_result(place: Place) -> dict[str, Any]:
    if not place.exists():
        raise EnvironmentFailure(f"{place} is missing though the job ended; run again")
    return place.read_json()

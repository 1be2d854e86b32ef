"""A verification as its driver sees it: from the results of all tasks together."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from etl.errors import DataError
from etl.formats import parquet_tables
from etl.partition.config import SOURCE_SPLIT
from etl.slices.manifest import table_file
from etl.slices.plan import Plan
from etl.storage.place import Place
from etl.verify.erased import find_erased, history_findings
from etl.verify.expected import marker_findings, statistics_findings
from etl.verify.findings import Finding, KeyFault, Outcome, What, marker_fault
from etl.verify.join import CONTENTS, RETIRED_KEYS, Reconciler, key_buckets
from etl.verify.result import LineResult, read_rows
from etl.verify.target import Line, Target

DUPLICATES_FILE = "duplicates.parquet"


@dataclass(frozen=True)
class Collected:
    """All that the tasks of one check published, by line of work, and what is compared across them."""

    target: Target
    folder: Place
    results: dict[int, LineResult]
    reconciler: Reconciler

    @classmethod
    def read(cls, target: Target, lines: Sequence[Line], folder: Place) -> "Collected":
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
            found, good = (self._bucket(name, bucket) for name in ("found", "good"))
            self.reconciler.check_keys(found, good, retired.filter(retired_buckets == bucket))
        self.reconciler.check_groups(self.target.manifest["config"]["group_by"])
        for bucket in range(buckets):
            yield self.reconciler.check_contents(self._bucket(CONTENTS, bucket))

    def _bucket(self, name: str, bucket: int) -> pa.Table:
        return read_rows(self.folder, self.results, name, bucket)

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
            find_erased(target, keys)
            files += history_findings(target, keys)
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

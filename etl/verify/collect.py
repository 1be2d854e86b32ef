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
from etl.slices.manifest import CLASS_COUNTS_FILE, DEPARTED_FILE, EXAMPLES_FILE
from etl.slices.plan import Plan
from etl.stages.layout import normalized_stage
from etl.storage.place import Place
from etl.verify.exactly_once import Pixels
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
    CONTENT_MOVED,
    DEPARTED,
    EARLIER,
    FORGOTTEN,
    MANIFEST,
    MISSING,
    MOVED,
    SAME_CONTENT,
    SLICE,
    TABLE,
    UNKNOWN,
    Duplicates,
    Finding,
    KeyFindings,
    Outcome,
)
from etl.verify.remembered import group_faults
from etl.verify.target import Target
from etl.verify.work_list import Line

DUPLICATES_FILE = "duplicates.parquet"

# One row per example whose content (the SHA-256 of its source image) other keys have too; by content, then key.
DUPLICATES = pa.schema(
    [
        ("sha256", pa.binary(32)),
        ("key", pa.string()),
        ("label", pa.int32()),
        ("split", pa.string()),
        ("slice", pa.string()),
    ]
)


def task_place(results: Place, line: int) -> Place:
    """What a line of work found."""
    return results / f"line-{line:06d}.json"


def bucket_place(results: Place, bucket: int) -> Place:
    """What a bucket's judge found."""
    return results / f"bucket-{bucket:06d}.json"


def found_place(results: Place, bucket: int) -> Place:
    """Examples of a bucket whose content several keys have, as rows of `exactly_once.FOUND`."""
    return results / f"bucket-{bucket:06d}.parquet"


def groups_place(results: Place, bucket: int) -> Place:
    """Groups that a bucket has images of, as rows of `exactly_once.GROUPS`."""
    return results / f"groups-{bucket:06d}.parquet"


@dataclass(frozen=True)
class Collected:
    """All that the tasks of one check published.

    Raises EnvironmentFailure where something of it is not there though the tasks ended.
    """

    target: Target
    lines: Sequence[Line]
    results: Place
    tasks: list[dict[str, Any]]
    buckets: dict[int, dict[str, Any]]

    @classmethod
    def read(cls, target: Target, lines: Sequence[Line], results: Place) -> "Collected":
        tasks = [_read_result(task_place(results, line["line"])) for line in lines]
        sent = [sum(counts) for counts in zip(*(task["sent"] for task in tasks), strict=True)]
        buckets = {number: _read_result(bucket_place(results, number)) for number, count in enumerate(sent) if count}
        for number, told in buckets.items():
            if told["lines"] != sent[number]:
                raise EnvironmentFailure(f"{told['lines']} of {sent[number]} lines came out of the shuffle; run again")
        return cls(target, lines, results, tasks, buckets)

    def outcome(self, plan: Plan | None, why_unplanned: str = "") -> Outcome:
        """What it all says; ``plan`` is that of the slices, made again, or None and ``why_unplanned``.

        If there is no plan because something is damaged, that is found elsewhere; else the config is wrong.
        """
        target, files = self.target, self._file_findings()
        unreadable, counts, live = (self._sum(name) for name in ("unreadable", "counts", "live"))
        keys = self._trusted_keys(files, unreadable)
        if target.dataset is None:
            self._find_erased(keys)
        files += self._marker_findings(plan, live if not unreadable["lists"] else None, files)
        judged = list(self.buckets.values())
        is_sound = not (files or +unreadable or keys.counts)
        if target.dataset is not None and is_sound:
            pixels = Pixels()
            for each in judged:
                pixels.add(each["pixels"])
            left_out = {name: sum(each["left_out"][name] for each in judged) for name in ("removed_keys", "duplicates")}
            files += statistics_findings(target.manifest, pixels.sums(), left_out)
        if why_unplanned and not files and is_sound:
            files.append(fault(f"the config does not give these slices: {why_unplanned}"))
        duplicates = sum((Duplicates(**each["duplicates"]) for each in judged), Duplicates())
        return Outcome(files, keys, dict(sorted(counts.items())), duplicates)

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
        if whole is not None and (TABLE, CLASS_COUNTS_FILE) not in {(each.what, each.name) for each in known}:
            yield from class_count_findings(target.slices.folder, whole)
        if target.dataset is not None:
            yield from dataset_findings(target.dataset, target.raw)
        elif erased_config(target.root, target.manifest["input"]) is None:
            line = (
                f"{target.slices.marker} tells of slices that were made from other normalised images than"
                f" {normalized_stage(target.root).folder} has or had: were they copied from another root?"
            )
            yield Finding(MANIFEST, target.slices.marker_name, line)
        if target.raw is not None and target.dataset is not None:
            yield from raw_findings(target.raw, target.dataset, live)

    def _find_erased(self, keys: KeyFindings) -> None:
        """Add to ``keys`` the examples whose contents were erased elsewhere below the root."""
        erased = read_record(self.target.root)["sha256"].combine_chunks()
        try:
            groups = parquet_tables.iterate_groups(self.target.slices.folder / EXAMPLES_FILE, ["key", "sha256"])
            for table in groups if len(erased) else ():
                for key in table["key"].filter(pc.is_in(table["sha256"], value_set=erased)).to_pylist():
                    keys.add(DEPARTED, key, f"{key} was erased, and is still here; run: ringslice erase --slices")
        except (DataError, FileNotFoundError):  # told of as a table's
            return

    def duplicates(self) -> Iterator[pa.Table]:
        """All rows of `DUPLICATES`, in their order."""
        names = pa.array(self.target.slice_names)
        for number in sorted(self.buckets):
            for found in parquet_tables.iterate_groups(found_place(self.results, number)):
                columns = [found["sha256"], found["key"], found["label"], found["split"], names.take(found["number"])]
                yield pa.Table.from_arrays(columns, schema=DUPLICATES)

    def _file_findings(self) -> list[Finding]:
        """One for each file, however many tasks came upon it."""
        found: dict[tuple[str, str], Finding] = {}
        for task in self.tasks:
            for each in map(Finding.from_json, task["findings"]):
                found.setdefault((each.what, each.name), each)
        return list(found.values())

    def _trusted_keys(self, files: Sequence[Finding], unreadable: Mapping[str, int]) -> KeyFindings:
        """What is wrong with keys, less what may only seem so for something that cannot be read."""
        keys = KeyFindings.merged([each["keys"] for each in self.buckets.values()])
        config, buckets = self.target.manifest["config"], sorted(self.buckets)
        if config["group_by"] is not None:
            group_faults([groups_place(self.results, number) for number in buckets], config["group_by"], keys)
        whats = {(each.what, each.name) for each in files}
        if (TABLE, EXAMPLES_FILE) in whats and any(what == SLICE for what, _ in whats):
            return KeyFindings()
        doubtful = set[str]()
        if unreadable["slices"] or unreadable["departed"]:
            doubtful |= {MISSING, SAME_CONTENT, FORGOTTEN}
        if unreadable["earlier"] or any(what == EARLIER for what, _ in whats):
            doubtful |= {MOVED, CONTENT_MOVED, FORGOTTEN}
        if (TABLE, DEPARTED_FILE) in whats:
            doubtful |= {DEPARTED, FORGOTTEN}
        if unreadable["parts"] or self.target.dataset is None:
            doubtful |= {UNKNOWN, MISSING, SAME_CONTENT}
        return keys.without(*doubtful)


def _read_result(place: Place) -> dict[str, Any]:
    if not place.exists():
        raise EnvironmentFailure(f"{place} is missing though the job ended; run again")
    return place.read_json()

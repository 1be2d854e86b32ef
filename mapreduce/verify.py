#!/usr/bin/env python3
"""Read slices from the first byte to the last, and hold them against all that is said of them.

    python mapreduce/verify.py -r local data/flowers --every-stage

A mapper's line names slices, parts or files. It checks them (of a part: that every image of its pack is a good one or a
reject, once), publishes what it finds, and sends a line for each example by its key and by its content, and for each
good image by its key. What comes together in the shuffle is judged by the reducers: every good image exactly once, in
one split, as it is in its part; and contents that several keys have.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from etl.errors import DataError, RingsliceError
from etl.formats import parquet_tables, schemas
from etl.options.stage_options import HADOOP, VERIFY_OPTIONS
from etl.slices.manifest import read_manifest, slices_of
from etl.slices.plan import FATES_FILE, Plan
from etl.stages.layout import VERIFICATION_FORMAT, slices_stage_in, verification_stage, verification_stage_in
from etl.stages.stage import Stage, State
from etl.stages.summary import Summary, verify_summary
from etl.storage.atomic import publish_bytes, replace_file, withdraw
from etl.storage.json_files import json_bytes
from etl.storage.place import Place, open_place
from etl.verify.collect import (
    DUPLICATES,
    DUPLICATES_FILE,
    Collected,
    bucket_place,
    found_place,
    groups_place,
    task_place,
)
from etl.verify.exactly_once import FOUND, GROUPS, Judge
from etl.verify.lines import Line, bucket_of
from etl.verify.repair import Repair
from etl.verify.target import Target
from etl.verify.task import TaskCheck
from etl.verify.work_list import SLICES
from mapreduce.jobs.stage_job import StageJob, main
from mapreduce.jobs.work import Work, worthwhile_tasks
from mapreduce.shuffle.partitioner import PARTITIONER, PROPERTIES
from mapreduce.shuffle.text_protocol import TextsProtocol, bucket_keys, bucket_number

RESULTS_FOLDER = "results"  # below the folder of a job's tasks
BUCKET_EXAMPLES = 250_000  # about what makes a bucket, and so a reducer, worth while


class Verify(StageJob):
    """Check the slices under ROOT/slices/NAME, and all that is said of them."""

    OPTIONS = VERIFY_OPTIONS
    EXAMPLE = "python mapreduce/verify.py -r local data/flowers --every-stage"
    INTERNAL_PROTOCOL = TextsProtocol
    SORT_VALUES = True
    PARTITIONER = PARTITIONER
    JOBCONF = PROPERTIES

    def mapper(self, _: None, task: dict[str, Any]) -> Iterator[tuple[bytes, Line]]:
        """From a line of slices, parts or files: check them, and send what is to be judged."""
        buckets = self.job["buckets"]
        keys = bucket_keys(buckets)
        sent = [0] * buckets
        check = TaskCheck(self.job)
        for line in check.lines(task):
            bucket = bucket_of(line, buckets)
            sent[bucket] += 1
            self.report(f"line {task['line']}: {sum(sent)} sent")
            yield keys[bucket], line
        results = self.attempts / RESULTS_FOLDER
        told = check.result.to_json() | {"sent": sent}
        publish_bytes(task_place(results, task["line"]), self.attempts, json_bytes(told))
        self.count_task(check.result.counts["bytes"] + check.result.counts["other_bytes"], 0)

    def reducer(self, key: bytes, lines: Iterable[Line]) -> Iterator[tuple[str, int]]:
        """All lines of one bucket, sorted: judge them."""
        bucket, results = bucket_number(key), self.attempts / RESULTS_FOLDER
        names = ("dropped", "any_of_equals", "by_source", "grouped", "knows_earlier", "lists_removed")
        rules = {name: self.job[name] for name in names}
        judge = Judge(self._slice_name, **rules)
        found = parquet_tables.tables_of(FOUND, judge.judge(lines))
        parquet_tables.write_tables(found_place(results, bucket), self.attempts, FOUND, found)
        if self.job["grouped"]:
            groups = parquet_tables.tables_of(GROUPS, judge.groups())
            parquet_tables.write_tables(groups_place(results, bucket), self.attempts, GROUPS, groups)
        publish_bytes(bucket_place(results, bucket), self.attempts, json_bytes(judge.to_json()))
        yield f"bucket {bucket}", judge.lines

    def _slice_name(self, number: int) -> str:
        """For findings alone: in a task that finds nothing the manifest is not read."""
        if not hasattr(self, "_names"):
            manifest = read_manifest(slices_stage_in(open_place(self.job["folder"])))
            self._names = [each["name"] for _, each in slices_of(manifest)]
        return self._names[number]

    def stage_at(self, root: Place, values: dict[str, Any]) -> Stage:
        target = Target.find(root, values["name"])
        self._target = target
        if values["to"]:
            return verification_stage_in(open_place(values["to"]))
        return verification_stage(root, values["name"])

    def prepare(self, root: Place, values: dict[str, Any], runner: str, overwrite: bool) -> Work | None:
        del root, overwrite
        self._runner, self._every_stage = runner, bool(values["every_stage"])
        self._repair = Repair(self._target) if values["repair"] else None
        self._identity = {"config": {"every_stage": self._every_stage}, "input": self._target.fingerprint}
        state = self.stage.begin(self._identity, again=True)
        assert state is not State.DONE
        return self._work()

    def _work(self) -> Work:
        target = self._target
        self._plan, self._why_unplanned = _plan_again(target)
        fates = self.stage.work / FATES_FILE if self._plan and self._plan.decided else None
        if self._plan and self._plan.decided and fates:
            fates.delete()  # of a check before a repair
            parquet_tables.write_tables(fates, self.stage.attempts, schemas.FATES, self._plan.decided.tables())
        self._lines = target.lines(self._every_stage, self._plan)
        splits = target.manifest["splits"].values()
        examples = sum(split["records"] for split in splits)
        tasks = worthwhile_tasks(sum(split["bytes"] for split in splits), examples)
        most = tasks if self._runner == HADOOP else 2 * (os.cpu_count() or 1)
        buckets = self.number_of_reducers(max(1, min(most, examples // BUCKET_EXAMPLES)))
        job = {"stage": "verify", **target.job(self._plan, fates), "buckets": buckets, "reducers": buckets}
        return Work(job, self._lines, tasks, examples, self._watch)

    def finish(self) -> Work | None:
        collected = Collected.read(self._target, self._lines, self._results)
        self._outcome = collected.outcome(self._plan, self._why_unplanned)
        if self._repair is not None and self._repair.attempt(self._outcome):
            return self._work()  # check all of it again: what is told then is true of what is there
        if self._repair is not None:
            self.run_record.note(repaired=self._repair.names())
        self._commit(collected)
        return None

    @property
    def _results(self) -> Place:
        return self.stage.task_folders()[-1] / RESULTS_FOLDER

    def _commit(self, collected: Collected) -> None:
        made = self.stage.attempts / DUPLICATES_FILE
        output, rows = parquet_tables.write_tables(made, self.stage.attempts, DUPLICATES, collected.duplicates())
        # for a moment there is none; one that tells of another table would be worse
        withdraw(self.stage.marker, self.stage.attempts)
        replace_file(made, self.stage.folder / DUPLICATES_FILE)
        told = {"duplicates": {"file": DUPLICATES_FILE, "rows": rows, "sha256": output.sha256}}
        marker = {"format": VERIFICATION_FORMAT, **self._identity, **self._outcome.to_json(), "tables": told}
        self.stage.commit(marker, self.run_record)

    def summary(self, already_done: bool) -> Summary:
        del already_done
        return verify_summary(self.stage, self._repair.names() if self._repair else None)

    def conclude(self) -> None:
        """Raises DataError where anything was found."""
        if number := self._outcome.number:
            left = self._repair.explain() if self._repair else ""
            found = f"{number} findings" if number > 1 else "1 finding"
            raise DataError(
                f"{self._target.slices.folder} does not hold what is said of it, {found}:{self._outcome.lines()}{left}"
            )

    def _watch(self) -> tuple[int, str]:
        folders = self.stage.task_folders()
        done = {info.base_name for info in (folders[-1] / RESULTS_FOLDER).children()} if folders else set()
        examples = 0
        for line in self._lines:
            if line["kind"] == SLICES and task_place(self.stage.folder, line["line"]).name in done:
                examples += sum(each["records"] for each in line["slices"])
        return examples, ""


def _plan_again(target: Target) -> tuple[Plan | None, str]:
    """The plan of the slices, made again; else why it cannot be, empty where what it was made of is gone."""
    if target.dataset is None or not target.knows_earlier:
        return None, ""
    try:
        return target.plan_again(), ""
    except (RingsliceError, OSError, ValueError, ArithmeticError) as error:
        return None, str(error).splitlines()[0]


if __name__ == "__main__":
    main(Verify)

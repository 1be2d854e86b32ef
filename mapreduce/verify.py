#!/usr/bin/env python3
"""Read slices from the first byte to the last, and compare them with all that is recorded of them.

    python mapreduce/verify.py -r local data/flowers --every-stage

Map-only: a mapper's line names slices, parts or files. It checks them (of a part: that every image of its pack is a
good one or a reject, once), and publishes what it finds, with tables of the examples or the good images. The driver
joins these: every good image exactly once, in its slice, as it is in its part; and contents that several keys have.
"""

from collections.abc import Iterator
from typing import Any

from etl.errors import DataError, RingsliceError
from etl.formats import parquet_tables, schemas
from etl.options.stage_options import VERIFY_OPTIONS
from etl.slices.plan import ASSIGNMENTS_FILE, Plan
from etl.stages.layout import VERIFICATION_FORMAT, verification_stage, verification_stage_in
from etl.stages.stage import Stage
from etl.stages.summary import Summary
from etl.storage.atomic import replace_file, withdraw
from etl.storage.place import Place, open_place
from etl.verify.collect import DUPLICATES_FILE, Collected
from etl.verify.join import DUPLICATES
from etl.verify.repair import Repair
from etl.verify.target import Target
from etl.verify.task import TaskCheck, task_place
from etl.verify.work_list import SLICES
from mapreduce.jobs.stage_job import StageJob, main
from mapreduce.jobs.work import Work, worthwhile_tasks

RESULTS_FOLDER = "results"  # below the folder of a job's tasks
BUCKET_EXAMPLES = 100_000  # about so many the driver has in memory at once


class Verify(StageJob):
    """Check the slices under ROOT/slices/NAME, and all that is recorded of them."""

    OPTIONS = VERIFY_OPTIONS
    EXAMPLE = "python mapreduce/verify.py -r local data/flowers --every-stage"

    def mapper(self, _: None, task: dict[str, Any]) -> Iterator[tuple[str, int]]:
        """From a line of slices, parts or files: check them."""
        check = TaskCheck(self.job)
        check.check(task)
        check.publish(self.attempts / RESULTS_FOLDER, self.attempts, task["line"])
        self.count_task(check.counts["bytes"] + check.counts["other_bytes"], 0)
        yield f"line {task['line']}", check.counts["examples"]

    def stage_at(self, root: Place, values: dict[str, Any]) -> Stage:
        target = Target.find(root, values["name"])
        self._target = target
        if values["to"]:
            return verification_stage_in(open_place(values["to"]))
        return verification_stage(root, values["name"])

    def prepare(self, root: Place, values: dict[str, Any], runner: str, overwrite: bool) -> Work | None:
        del root, runner, overwrite
        self._every_stage = bool(values["every_stage"])
        self._repair = Repair(self._target) if values["repair"] else None
        self._identity = {"config": {"every_stage": self._every_stage}, "input": self._target.fingerprint}
        self.stage_run = self.stage.reopen(self._identity)
        return self._work()

    def _work(self) -> Work:
        target = self._target
        self._plan, self._why_unplanned = _plan_again(target)
        assignments = self.stage.work / ASSIGNMENTS_FILE if self._plan and self._plan.assignment else None
        if self._plan and self._plan.assignment and assignments:
            assignments.delete()  # of a check before a repair
            parquet_tables.write_tables(
                assignments, self.open_run.staging, schemas.ASSIGNMENTS, self._plan.assignment.tables()
            )
        self._lines = target.lines(self._every_stage, self._plan)
        splits = target.manifest["splits"].values()
        examples = sum(split["records"] for split in splits)
        read = (each["bytes"] for line in self._lines for each in [*line.get("files", ()), *line.get("slices", ())])
        tasks = worthwhile_tasks(sum(read), examples)
        self._buckets = max(1, -(-examples // BUCKET_EXAMPLES))
        job = {"stage": "verify", **target.job(self._plan, assignments), "buckets": self._buckets, "mappers": tasks}
        return Work(job, self._lines, tasks, examples, self._watch)

    def finish(self) -> Work | None:
        collected = Collected.read(self._target, self._lines, self._results)
        made = self.open_run.staging / DUPLICATES_FILE
        made.delete()  # of a check before a repair
        tables = collected.reconcile(self._buckets)
        output, rows = parquet_tables.write_tables(made, self.open_run.staging, DUPLICATES, tables)
        self._outcome = collected.outcome(self._plan, self._why_unplanned)
        if self._repair is not None and self._repair.attempt(self._outcome):
            return self._work()  # check all of it again
        if self._repair is not None:
            self.run_record.note(repaired=self._repair.names())
        self._commit(made, {"file": DUPLICATES_FILE, "rows": rows, "sha256": output.sha256})
        return None

    @property
    def _results(self) -> Place:
        return self.stage.task_folders()[-1] / RESULTS_FOLDER

    def _commit(self, made: Place, duplicates: dict[str, Any]) -> None:
        # for a moment there is none: better than one of another table
        withdraw(self.stage.marker, self.open_run.staging)
        replace_file(made, self.stage.folder / DUPLICATES_FILE)
        marker = {"format": VERIFICATION_FORMAT, **self._identity, **self._outcome.to_json()}
        self.open_run.commit({**marker, "tables": {"duplicates": duplicates}}, self.run_record)

    def summary(self, already_done: bool) -> Summary:
        del already_done
        return _summary(self.stage, self._repair.names() if self._repair else None)

    def conclude(self) -> None:
        """Raises DataError if anything was found."""
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
    """The plan of the slices, made again; else why it cannot be, empty if what it was made of is gone."""
    if target.dataset is None or not target.knows_parent:
        return None, ""
    try:
        return target.plan_again(), ""
    except (RingsliceError, OSError, ValueError, ArithmeticError) as error:
        return None, str(error).splitlines()[0]


def _summary(stage: Stage, repaired: list[str] | None) -> Summary:
    """The facts of a finished verification."""
    marker, seconds = stage.read_marker(), stage.read_run().get("seconds", 0.0)
    counts = marker["counts"]
    read = counts.get("bytes", 0) + counts.get("other_bytes", 0)
    facts = {
        "examples": counts.get("examples", 0),
        "slices": counts.get("slices", 0),
        "bytes": read,
        "parts": counts.get("parts", 0),
        "findings": marker["findings_by_kind"],
        "duplicates": marker["duplicates"],
        **({"repaired": repaired or "nothing"} if repaired is not None else {}),
        "seconds": round(seconds, 1),
        "mb_per_s": round(read / seconds / 1e6) if seconds else None,
    }
    brief = ("examples", "slices", "findings", *(["repaired"] if repaired is not None else []), "seconds")
    return Summary(stage.name, str(stage.folder), False, facts, brief=brief)


if __name__ == "__main__":
    main(Verify)

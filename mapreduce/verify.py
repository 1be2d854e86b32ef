#!/usr/bin/env python3
"""Read slices from the first byte to the last, and compare them with all that is recorded of them.

    python mapreduce/verify.py -r local data/flowers --every-stage

Map-only: a mapper's line names slices, parts or files. It checks them (of a part: that every image of its pack is a
good one or a reject, once), and publishes what it finds, with tables of the examples or the good images. The driver
joins these: every good image exactly once, in its slice, as it is in its part; and contents that several keys have.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from etl.errors import DataError, RingsliceError
from etl.formats import parquet_tables, schemas
from etl.options.stage_options import VERIFY_OPTIONS
from etl.slices.plan import FATES_FILE, Plan
from etl.stages.layout import VERIFICATION_FORMAT, verification_stage, verification_stage_in
from etl.stages.summary import verify_summary
from etl.storage.atomic import replace_file, withdraw
from etl.storage.place import open_place
from etl.verify.collect import DUPLICATES_FILE, Collected
from etl.verify.findings import Outcome
from etl.verify.join import DUPLICATES
from etl.verify.repair import Repair
from etl.verify.target import Target
from etl.verify.task import TaskCheck, task_place
from etl.verify.work_list import SLICES
from mapreduce.jobs.stage_job import Show, StageJob, main
from mapreduce.jobs.task_runner import TaskRunner
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
        self.count_task(check.result.counts["bytes"] + check.result.counts["other_bytes"], 0)
        yield f"line {task['line']}", check.result.counts["examples"]

    def run_stage(self, values: Mapping[str, Any], show: Show) -> None:
        root = self.root
        target = Target.find(root, values["name"])
        if values["to"]:
            stage = verification_stage_in(open_place(values["to"]))
        else:
            stage = verification_stage(root, values["name"])
        repair = Repair(target) if values["repair"] else None
        identity = {"config": {"every_stage": bool(values["every_stage"])}, "input": target.fingerprint}
        with TaskRunner(self, stage, values) as tasks:
            stage.begin(identity, again=True)
            outcome, duplicates = _check(tasks, target, values["every_stage"])
            while repair and repair.attempt(outcome):
                outcome, duplicates = _check(tasks, target, values["every_stage"])
            if repair:
                tasks.record.note(repaired=repair.names())
            # for a moment there is none: better than one of another table
            withdraw(stage.marker, stage.attempts)
            replace_file(stage.attempts / DUPLICATES_FILE, stage.folder / DUPLICATES_FILE)
            marker = {"format": VERIFICATION_FORMAT, **identity, **outcome.to_json()}
            stage.commit({**marker, "tables": {"duplicates": duplicates}}, tasks.record)
        show(verify_summary(stage, repair.names() if repair else None))
        if number := outcome.number:
            found = f"{number} findings" if number > 1 else "1 finding"
            raise DataError(
                f"{target.slices.folder}: verification failed, {found}:{outcome.lines()}"
                f"{repair.explain() if repair else ''}"
            )


def _check(tasks: TaskRunner, target: Target, every_stage: bool) -> tuple[Outcome, dict[str, Any]]:
    """Check all once; returns what was found, and of the table of duplicates, in the attempts, what the marker has."""
    stage = tasks.stage
    plan, why_unplanned = _plan_again(target)
    fates = stage.work / FATES_FILE if plan and plan.decided else None
    if plan and plan.decided and fates:
        fates.delete()  # of a check before a repair
        parquet_tables.write_tables(fates, stage.attempts, schemas.FATES, plan.decided.tables())
    lines = target.lines(every_stage, plan)
    examples = sum(split["records"] for split in target.manifest["splits"].values())
    read = (each["bytes"] for line in lines for each in [*line.get("files", ()), *line.get("slices", ())])
    number = worthwhile_tasks(sum(read), examples)
    buckets = max(1, -(-examples // BUCKET_EXAMPLES))
    job = {"stage": "verify", **target.job(plan, fates), "buckets": buckets, "mappers": number}

    def watch() -> tuple[int, str]:
        folders = stage.task_folders()
        done = {info.base_name for info in (folders[-1] / RESULTS_FOLDER).children()} if folders else set()
        checked = (line for line in lines if task_place(stage.folder, line["line"]).name in done)
        return sum(each["records"] for line in checked if line["kind"] == SLICES for each in line["slices"]), ""

    tasks.run(Work(job, lines, number, examples, watch))
    collected = Collected.read(target, lines, stage.task_folders()[-1] / RESULTS_FOLDER)
    made = stage.attempts / DUPLICATES_FILE
    made.delete()  # of a check before a repair
    output, rows = parquet_tables.write_tables(made, stage.attempts, DUPLICATES, collected.reconcile(buckets))
    outcome = collected.outcome(plan, why_unplanned)
    return outcome, {"file": DUPLICATES_FILE, "rows": rows, "sha256": output.sha256}


def _plan_again(target: Target) -> tuple[Plan | None, str]:
    """The plan of the slices, made again; else why it cannot be, empty if what it was made of is gone."""
    if target.dataset is None or not target.knows_earlier:
        return None, ""
    try:
        return target.plan_again(), ""
    except (RingsliceError, OSError, ValueError, ArithmeticError) as error:
        return None, str(error).splitlines()[0]


if __name__ == "__main__":
    main(Verify)

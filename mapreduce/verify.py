#!/usr/bin/env python3
"""Read slices from the first byte to the last, and compare them with all that is recorded of them.

    python mapreduce/verify.py -r local data/flowers --every-stage

Map-only: a mapper's line names slices, parts or files. It checks them (of a part: that every image of its pack is a
good one or a reject, once), and publishes what it finds, with tables of the examples or the good images. The driver
joins these: every good image exactly once, in its slice, as it is in its part; and contents that several keys have.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from etl.errors import DataError, EnvironmentFailure, RingsliceError
from etl.formats import parquet_tables
from etl.options.stage_options import VERIFY_OPTIONS
from etl.slices.plan import ASSIGNMENTS_FILE, Plan
from etl.stages.layout import (
    VERIFICATION_FORMAT,
    folders_of,
    refuse_within,
    verification_stage,
    verification_stage_in,
)
from etl.stages.marker import fingerprint_of
from etl.stages.run import Run
from etl.stages.stage import Stage
from etl.stages.summary import Summary
from etl.storage.atomic import replace_file, withdraw
from etl.storage.place import open_place
from etl.verify.collect import DUPLICATES_FILE, CheckResults
from etl.verify.findings import Outcome
from etl.verify.join import DUPLICATES, result_place
from etl.verify.repair import Repair
from etl.verify.target import SLICES, Target
from etl.verify.task import check_line
from mapreduce.jobs.stage_job import Show, StageJob, TaskRunner, Work, main, worthwhile_tasks

RESULTS_FOLDER = "results"  # below the folder of a job's tasks
BUCKET_EXAMPLES = 100_000  # about so many the driver has in memory at once


class Verify(StageJob):
    """Check the slices under ROOT/slices/NAME, and all that is recorded of them."""

    OPTIONS = VERIFY_OPTIONS
    EXAMPLE = "python mapreduce/verify.py -r local data/flowers --every-stage"

    def mapper(self, _: None, task: dict[str, Any]) -> Iterator[tuple[str, int]]:
        """From a line of slices, parts or files: check them."""
        result = check_line(self.job, task)
        result.publish(self.staging / RESULTS_FOLDER, self.staging, task["line"], self.job["buckets"])
        self.count_task(result.counts["bytes"] + result.counts["other_bytes"], 0)
        yield f"line {task['line']}", result.counts["examples"]

    def run_stage(self, values: Mapping[str, Any], show: Show) -> None:
        """Check the slices, and repair them if that is asked. Raises DataError for findings that stay."""
        target, stage = Target.find(self.root, values["name"]), verification_stage(self.root, values["name"])
        if values["to"] and (to := open_place(values["to"])).resolved() != stage.folder.resolved():
            refuse_within(to, "--to", folders_of(self.root))
            stage = verification_stage_in(to.resolved())
        repair = Repair(target) if values["repair"] else None
        identity = {"config": {"every_stage": bool(values["every_stage"])}, "input": target.fingerprint}
        tasks = TaskRunner(self, stage, values)
        with stage.reopen(identity) as run:
            outcome, duplicates = _check(tasks, run, target, values["every_stage"])
            while repair and repair.attempt(outcome):
                outcome, duplicates = _check(tasks, run, target, values["every_stage"])
            if repair:
                tasks.record.note(repaired=repair.names())
            target.require_unchanged()
            # for a moment there is none: better than one of another table
            withdraw(stage.marker, run.staging)
            replace_file(run.staging / DUPLICATES_FILE, stage.folder / DUPLICATES_FILE)
            marker = {"format": VERIFICATION_FORMAT, **identity, **outcome.to_json()}
            run.commit({**marker, "tables": {"duplicates": duplicates}}, tasks.record)
        show(_summary(stage, repair.names() if repair else None))
        if number := outcome.number:
            found = f"{number} findings" if number > 1 else "1 finding"
            left = repair.explain() if repair else ""
            raise DataError(f"{target.slices.folder}: verification failed, {found}:{outcome.lines()}{left}")


def _check(tasks: TaskRunner, run: Run, target: Target, every_stage: bool) -> tuple[Outcome, dict[str, Any]]:
    """Check all once; returns the findings, and the facts of the table of duplicates, which is in staging."""
    stage = run.stage
    plan, why_unplanned = _plan_again(target)
    assignments = plan.write_assignment(stage.work / ASSIGNMENTS_FILE, run.staging) if plan else None
    lines = target.lines(every_stage, plan)
    examples = sum(split["records"] for split in target.manifest["splits"].values())
    number = worthwhile_tasks(sum(each["bytes"] for line in lines for each in line["items"]), examples)
    buckets = max(1, -(-examples // BUCKET_EXAMPLES))
    job = {"stage": "verify", **target.job(plan, assignments, every_stage), "buckets": buckets, "mappers": number}
    # results are matched to lines by their numbers
    job["list"] = fingerprint_of(json.dumps(lines, allow_nan=False, default=list).encode())

    def watch() -> tuple[int, str]:
        folders = stage.task_folders()
        done = {info.base_name for info in (folders[-1] / RESULTS_FOLDER).children()} if folders else set()
        checked = (line for line in lines if result_place(stage.folder, line["line"]).name in done)
        return sum(each["records"] for line in checked if line["kind"] == SLICES for each in line["items"]), ""

    tasks.run(run, Work(job, lines, number, examples, watch))
    collected = CheckResults.read(target, lines, stage.task_folders()[-1] / RESULTS_FOLDER)
    made = run.staging / DUPLICATES_FILE
    made.delete()  # of a check before a repair
    output, rows = parquet_tables.write_tables(made, run.staging, DUPLICATES, collected.reconcile(buckets))
    outcome = collected.outcome(plan, why_unplanned)
    return outcome, {"file": DUPLICATES_FILE, "rows": rows, "sha256": output.sha256}


def _plan_again(target: Target) -> tuple[Plan | None, str]:
    """The plan of the slices, made again; else why it cannot be, empty if what it was made of is gone."""
    if not target.has_plan:
        return None, ""
    try:
        return target.plan_again(), ""
    except EnvironmentFailure:
        raise  # of this check, not of the slices
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

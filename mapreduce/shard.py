#!/usr/bin/env python3
"""Deal the normalised images to splits and slices, and write each slice as a TFRecord file in a seeded order.

    python mapreduce/shard.py -r local data/flowers --workers 8

The MapReduce shuffle is the global shuffle: a mapper's line names a part, it sends each record to its slice under a
seeded key, and the reducer of a slice writes the records in the order they come. Nothing is decoded. What travels for a
record is up to `mapreduce.shuffle.transport`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from etl.formats import parquet_tables, schemas
from etl.normalized.parts import read_rows
from etl.options.stage_options import SHARD_OPTIONS
from etl.partition.pixel_statistics import PixelSums
from etl.slices.lineage import find_parent, lineage_in_place, lineage_of
from etl.slices.manifest_builder import build_manifest
from etl.slices.plan import (
    ASSIGNMENTS_FILE,
    Plan,
    assign_rows,
    is_done_before,
    make_plan,
    recorded_options,
    slice_plan_of,
)
from etl.slices.writer import facts_place, order_key, slice_names, write_slice
from etl.stages.layout import normalized_stage, rebuilt_stage, slices_stage
from etl.stages.names import WORK_FOLDER
from etl.stages.run import Run
from etl.stages.stage import Stage
from etl.stages.summary import Summary, speed
from etl.storage.atomic import publish_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place, open_place
from mapreduce.jobs.stage_job import Show, main
from mapreduce.jobs.task_runner import TaskRunner
from mapreduce.jobs.work import Work, worthwhile_tasks
from mapreduce.shuffle.shuffle_job import ShuffleJob
from mapreduce.shuffle.transport import COLUMNS, TRANSPORTS, pick

SUMS_FOLDER = "sums"  # below the work folder: for each part that a mapper is done with its training pixels' sums
PIXEL_COLUMNS = ["width", "height", "sums", "squares"]


class Shard(ShuffleJob):
    """Deal the normalised images under ROOT/normalized to slices under ROOT/slices/NAME."""

    OPTIONS = SHARD_OPTIONS
    EXAMPLE = "python mapreduce/shard.py -r local data/flowers --workers 8"

    def mapper(self, _: None, task: dict[str, Any]) -> Iterator[tuple[bytes, tuple[bytes, bytes]]]:
        """From the line of a part: each of its examples, under its slice's key and its order there."""
        normalized = open_place(self.job["root"]) / "normalized"
        part, reducers = task["part"], self.job["reducers"]
        rows = read_rows(normalized, part, [*COLUMNS, "label", "split", *PIXEL_COLUMNS])
        plan = slice_plan_of(self.job)
        splits, slices = assign_rows(plan, rows, task, self._assignments())
        keys = {
            number: self.transport.key(number, place % reducers, reducers)
            for place, number in enumerate(self.job["todo"])
        }
        wanted = np.isin(slices, self.job["todo"])
        examples = self.transport.send(normalized, part, rows, wanted)
        chosen = rows["key"].filter(wanted).to_pylist()
        for number, key, value in zip(slices[wanted].tolist(), chosen, examples, strict=True):
            yield keys[number], (order_key(key, plan.shares.seed), value)
        sums = PixelSums()
        sums.add(rows.filter(splits == plan.splits.index("train")))
        publish_bytes(sums_place(open_place(self.job["folder"]), part), self.attempts, json_bytes(vars(sums)))
        self.count_task(sum(rows["size"].to_pylist()), 0)

    def _assignments(self) -> Place | None:
        return open_place(self.job["folder"]) / WORK_FOLDER / ASSIGNMENTS_FILE if self.job["has_assignments"] else None

    def reducer(self, key: bytes, values: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, int]]:
        """All examples of one slice, in their order: write it."""
        split, name, records = planned = self.job["slices"][self.transport.slice_number(key)]
        normalized = open_place(self.job["root"]) / "normalized"
        examples = self.transport.receive(normalized, (value for _, value in values))
        facts = write_slice(open_place(self.job["folder"]), self.attempts, planned, examples)
        self.count_task(0, facts["bytes"])
        self.increment_counter("examples", split, records)
        yield name, records

    def run_stage(self, values: Mapping[str, Any], show: Show) -> None:
        stage = (rebuilt_stage if values.get("recorded_options") else slices_stage)(self.root, values["name"])
        is_done = self._shard(TaskRunner(self, stage, values), self.root, dict(values))
        show(_summary(stage, is_done))

    def _shard(self, tasks: TaskRunner, root: Place, values: dict[str, Any]) -> bool:
        """Plan, write and commit the slices; returns whether that was done before."""
        stage, overwrite = tasks.stage, bool(values.get("overwrite"))
        normalized = normalized_stage(root).read_generation()
        values |= recorded_options(root, values["name"]) if values.get("recorded_options") else {}
        if not overwrite and is_done_before(stage, values, normalized.fingerprint):
            return True
        parent = find_parent(root, values["splits_from"], stage, overwrite)
        lineage = lineage_of(values["splits_from"], parent)
        if values.get("recorded_options") and parent:
            lineage = lineage_in_place(root, parent)
        plan = make_plan(root, values, normalized, parent)
        identity = {"config": plan.config.to_json(), "input": normalized.fingerprint}
        if (run := stage.begin(identity, overwrite=overwrite)) is None:
            return True
        with run:
            slices = _planned_slices(plan)
            tasks.run(run, self._plan_work(run, plan, slices))
            statistics = PixelSums()
            for part in normalized.entries:
                statistics.merge(PixelSums(**sums_place(stage.folder, part["part"]).read_json()))
            manifest = build_manifest(
                run,
                identity,
                normalized.marker,
                slices,
                statistics=statistics,
                plan={"lineage": lineage, "known": plan.known, "left_out": plan.left_out},
                history=plan.history,
            )
            run.commit(manifest, tasks.record)
        return False

    def _plan_work(self, run: Run, plan: Plan, slices: Sequence[tuple[str, str, int]]) -> Work:
        """Of the slices those that no interrupted run has written; writes the table of assignments for the tasks."""
        folder, work, root, normalized = run.folder, run.work, self.root, plan.normalized
        todo = [number for number, (_, name, _) in enumerate(slices) if not facts_place(folder, name).exists()]
        if plan.assignment:
            tables = plan.assignment.tables()
            parquet_tables.write_tables(work / ASSIGNMENTS_FILE, run.staging, schemas.ASSIGNMENTS, tables)
        transport = pick(root, self.options.runner)
        size = normalized.entries.sum("bytes")
        records = sum(records for _, _, records in slices)
        worthwhile = min(worthwhile_tasks(size, records, TRANSPORTS[transport].RECEIVED), max(1, len(todo)))
        job = {
            "stage": "shard",
            "root": root.uri,
            "folder": folder.uri,
            "config": plan.config.to_json(),
            "classes": normalized.marker["classes"],
            "has_assignments": plan.assignment is not None,
            "counts": plan.slice_plan.shares.counts.tolist(),
            "slices": slices,
            "todo": todo,
            "transport": transport,
            "mappers": worthwhile_tasks(size, records, TRANSPORTS[transport].SENT),
            "reducers": self.number_of_reducers(worthwhile),
        }

        def watch() -> tuple[int, str]:
            published = {info.base_name for info in (work / "slices").children()}
            read, parts = len((work / SUMS_FOLDER).children()), len(plan)
            done = sum(count for _, name, count in slices if facts_place(folder, name).name in published)
            return done, f"{read} of {parts} parts read" if read < parts else ""

        return Work(job, plan if todo else [], job["mappers"], records, watch)


def _planned_slices(plan: Plan) -> list[tuple[str, str, int]]:
    """Split, name and number of examples of each slice."""
    records = [int(count) for count in plan.slice_plan.shares.slice_records()]
    names = slice_names(plan.config.slices, plan.config.workers, plan.config.groups)
    return [(split, name, count) for (split, name), count in zip(names, records, strict=True)]


def sums_place(folder: Place, part: str) -> Place:
    """Where a mapper leaves the sums over those pixels of a part that are in the training split."""
    return folder / WORK_FOLDER / SUMS_FOLDER / f"{part}.json"


def _summary(stage: Stage, already_done: bool) -> Summary:
    """The facts of finished slices: their sizes, and examples by split and class."""
    manifest, seconds = stage.read_marker(), stage.read_run().get("seconds", 0.0)
    splits = manifest["splits"]
    records = sum(split["records"] for split in splits.values())
    known = manifest["known"]
    has_history = any(count for name, count in (known or {}).items() if name != "new")
    by_class = [
        [name, *(split["by_class"][label] for split in splits.values())]
        for label, name in enumerate(manifest["classes"])
    ]
    sizes = {name: sum(counts) for name, *counts in by_class}
    smallest, largest = (choose(sizes, key=sizes.__getitem__) for choose in (min, max))
    facts = {
        "examples": records,
        "known": known,
        "splits": {name: split["records"] for name, split in splits.items()},
        "slices": {name: len(split["slices"]) for name, split in splits.items()},
        "smallest_class": {smallest: sizes[smallest]},
        "largest_class": {largest: sizes[largest]},
        "manifest_sha256": stage.fingerprint(),
        "bytes": sum(split["bytes"] for split in splits.values()),
        "mean": [round(value, 3) for value in manifest["statistics"]["mean"]],
        "std": [round(value, 3) for value in manifest["statistics"]["std"]],
        **speed(records, seconds),
    }
    by_slice = [[each["name"], each["records"], each["bytes"]] for split in splits.values() for each in split["slices"]]
    shown = [("examples by class", ["class", *splits], by_class), ("slices", ["slice", "examples", "bytes"], by_slice)]
    brief = ("examples", *(["known"] if has_history else []), "splits", "slices", "seconds")
    return Summary(stage.name, str(stage.folder), already_done, facts, shown, brief)


if __name__ == "__main__":
    main(Shard)

#!/usr/bin/env python3
"""Assign the normalized images to splits and slices, and write each slice as a TFRecord file in a seeded order.

    python mapreduce/shard.py -r local data/flowers --workers 8

The MapReduce shuffle is the global shuffle: a mapper's line names a part, each of whose records it sends to its slice
under a seeded key, and the reducer of a slice writes the records in the order in which they arrive. Nothing is decoded.
`mapreduce.jobs.transport` decides in which form a record is sent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from etl.errors import UsageError
from etl.normalized.parts import read_rows
from etl.options.stage_options import OVERWRITE, SHARD_OPTIONS
from etl.partition.config import SPLIT_NAMES
from etl.partition.pixel_statistics import PixelSums
from etl.partition.shares import SlicePlan
from etl.slices.history import NEWEST, find_parent, lineage_of, require_parent
from etl.slices.manifest import build_manifest, work_table
from etl.slices.plan import (
    ASSIGNMENTS_FILE,
    Plan,
    assign_rows,
    is_done_before,
    make_plan,
)
from etl.slices.writer import order_key, slice_names, write_slice
from etl.stages.layout import normalized_stage, slices_stage
from etl.stages.names import WORK_FOLDER
from etl.stages.run import Run
from etl.stages.stage import Stage
from etl.stages.summary import Summary, speed
from etl.storage.atomic import publish_bytes
from etl.storage.place import Place, json_bytes, open_place
from mapreduce.jobs.stage_job import Show, StageJob, TaskRunner, Work, main, worthwhile_tasks
from mapreduce.jobs.transport import (
    COLUMNS,
    PARTITIONER,
    PROPERTIES,
    RECORDS,
    TRANSPORTS,
    LineProtocol,
    Transport,
    choose_transport,
    read_pairs,
    write_pair,
)

SUMS_FOLDER = "sums"  # in the work folder: the sums of the training pixels of each part that a mapper has read
PIXEL_COLUMNS = ["width", "height", "sums", "squares"]
ORDER_BYTES = 32  # of `order_key`


class Shard(StageJob):
    """Write the normalized images under ROOT/normalized as slices to ROOT/slices/NAME."""

    INTERNAL_PROTOCOL = LineProtocol
    OPTIONS = (*SHARD_OPTIONS, OVERWRITE)
    EXAMPLE = "python mapreduce/shard.py -r local data/flowers --workers 8"

    @property
    def transport(self) -> Transport:
        """In a task: the form in which examples are sent."""
        return TRANSPORTS[self.job["transport"]]

    @property
    def sends_raw_pairs(self) -> bool:
        """In a task: True if lengths and bytes are sent, not lines."""
        return bool(self.job["transport"] == RECORDS)

    def sort_values(self) -> bool:
        return not self.sends_raw_pairs

    def partitioner(self) -> str | None:
        return PARTITIONER if self.sends_raw_pairs else None

    def jobconf(self) -> dict[str, Any]:
        return super().jobconf() | (PROPERTIES if self.sends_raw_pairs else {})

    def run_mapper(self, step_num: int = 0) -> None:
        """Write raw pairs if the transport has them, which mrjob's protocols cannot."""
        if not self.sends_raw_pairs:
            super().run_mapper(step_num)
            return
        read = self.INPUT_PROTOCOL().read
        for key, (order, value) in self.map_pairs((read(line.rstrip()) for line in self.stdin), step_num):
            write_pair(self.stdout, key, order, value)

    def run_reducer(self, step_num: int = 0) -> None:
        """Read raw pairs if the transport has them."""
        if not self.sends_raw_pairs:
            super().run_reducer(step_num)
            return
        write = self.OUTPUT_PROTOCOL().write
        for key, value in self.reduce_pairs(read_pairs(self.stdin, ORDER_BYTES), step_num):
            self.stdout.write(write(key, value) + b"\n")

    def mapper(self, _: None, task: dict[str, Any]) -> Iterator[tuple[bytes, tuple[bytes, bytes]]]:
        """From the line of a part: send each of its examples under the key of its slice and its order there."""
        normalized = open_place(self.job["root"]) / "normalized"
        part, reducers = task["part"], self.job["reducers"]
        rows = read_rows(normalized, part, [*COLUMNS, "label", "split", *PIXEL_COLUMNS], task["rows_sha256"])
        plan = SlicePlan.from_json(self.job["plan"])
        folder = open_place(self.job["folder"])
        assignments = folder / WORK_FOLDER / ASSIGNMENTS_FILE if self.job["has_assignments"] else None
        splits, slices = assign_rows(plan, rows, task, assignments)
        keys = {
            number: self.transport.key(number, place % reducers, reducers)
            for place, number in enumerate(self.job["todo"])
        }
        is_sent = np.isin(slices, self.job["todo"])
        values = self.transport.send(normalized, part, rows, is_sent)
        sent_keys = rows["key"].filter(is_sent).to_pylist()
        for number, key, value in zip(slices[is_sent].tolist(), sent_keys, values, strict=True):
            yield keys[number], (order_key(key, plan.seed), value)
        sums = PixelSums()
        sums.add(rows.filter(splits == SPLIT_NAMES.index("train")))
        publish_bytes(sums_place(folder, part), self.staging, json_bytes(vars(sums)))
        self.count_task(sum(rows["size"].to_pylist()), 0)

    def reducer(self, key: bytes, values: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, int]]:
        """Write a slice of its examples, which come in their order."""
        split, name, records = planned = self.job["slices"][self.transport.slice_number(key)]
        normalized = open_place(self.job["root"]) / "normalized"
        examples = self.transport.receive(normalized, (value for _, value in values))
        facts = write_slice(open_place(self.job["folder"]), self.staging, planned, examples)
        self.count_task(0, facts["bytes"])
        self.increment_counter("examples", split, records)
        yield name, records

    def run_stage(self, values: Mapping[str, Any], show: Show) -> None:
        if values["name"] == NEWEST:
            raise UsageError(f"--name {NEWEST} is what --splits-from calls the newest slices; give another name")
        stage = slices_stage(self.root, values["name"])
        is_done = self._shard(TaskRunner(self, stage, values), self.root, values)
        show(_summary(stage, is_done))

    def _shard(self, tasks: TaskRunner, root: Place, values: Mapping[str, Any]) -> bool:
        """Plan, write and commit the slices; returns whether that was done before."""
        stage, overwrite = tasks.stage, values["overwrite"]
        normalized = normalized_stage(root).read_generation()
        if not overwrite and is_done_before(stage, values, normalized):
            return True
        parent = find_parent(root, values["splits_from"], stage, overwrite)
        lineage = lineage_of(values["splits_from"], parent)
        plan = make_plan(root, values, normalized, parent)
        identity = {"config": vars(plan.config), "input": normalized.fingerprint}
        if (run := stage.begin(identity, overwrite=overwrite)) is None:
            return True
        with run:
            names = slice_names(plan.config.slices, plan.config.workers, plan.config.groups)
            counted = zip(names, plan.slice_plan.slice_records(), strict=True)
            slices = [(split, name, records) for (split, name), records in counted]
            tasks.run(run, self._plan_work(run, plan, slices))
            statistics = PixelSums()
            for part in normalized.entries.column("part"):
                statistics.merge(PixelSums(**sums_place(stage.folder, part).read_json()))
            manifest = build_manifest(
                run,
                identity,
                normalized.marker,
                slices,
                statistics=statistics,
                plan={"lineage": lineage, "known": plan.known, "left_out": plan.left_out},
                history=plan.history,
            )
            normalized_stage(root).require_generation(normalized.fingerprint)
            require_parent(root, values["splits_from"], stage, parent)
            run.commit(manifest, tasks.record)
        return False

    def _plan_work(self, run: Run, plan: Plan, slices: Sequence[tuple[str, str, int]]) -> Work:
        """The work of writing the slices that are missing; writes the table of assignments that the tasks read."""
        folder, work, root, normalized = run.folder, run.work, self.root, plan.normalized
        todo = [number for number, (_, name, _) in enumerate(slices) if not work_table(folder, "slices", name).exists()]
        plan.write_assignment(work / ASSIGNMENTS_FILE, run.staging)
        transport = choose_transport(root, self.options.runner)
        size = sum(normalized.entries.column("bytes"))
        records = sum(records for _, _, records in slices)
        worthwhile = min(worthwhile_tasks(size, records, TRANSPORTS[transport].RECEIVED), max(1, len(todo)))
        job: dict[str, Any] = {
            "stage": "shard",
            "root": root.uri,
            "folder": folder.uri,
            "plan": plan.slice_plan.to_json(),
            "has_assignments": plan.assignment is not None,
            "slices": slices,
            "todo": todo,
            "transport": transport,
            "mappers": worthwhile_tasks(size, records, TRANSPORTS[transport].SENT),
            "reducers": self.number_of_reducers(worthwhile),
        }

        def watch() -> tuple[int, str]:
            published = {info.base_name for info in (work / "slices").children()}
            read, parts = len((work / SUMS_FOLDER).children()), len(plan)
            done = sum(count for _, name, count in slices if work_table(folder, "slices", name).name in published)
            return done, f"{read} of {parts} parts read" if read < parts else ""

        return Work(job, plan if todo else [], job["mappers"], records, watch)


def sums_place(folder: Place, part: str) -> Place:
    """The sums over the pixels of a part that are in the training split; written by a mapper."""
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

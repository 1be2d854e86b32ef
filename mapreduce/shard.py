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
from etl.slices.as_before import recorded_values
from etl.slices.lineage import find_earlier, lineage_in_place, lineage_of
from etl.slices.manifest import CONTENTS, DEPARTED, GROUPS
from etl.slices.manifest_builder import build_manifest
from etl.slices.plan import FATES_FILE, Plan, deal_rows, dealing_of, is_done_before, make_plan
from etl.slices.writer import facts_place, order_key, slice_names, write_slice
from etl.stages.layout import normalized_stage, remade_stage, slices_stage
from etl.stages.stage import WORK_FOLDER, Stage, State
from etl.stages.summary import shard_summary
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
        dealing = dealing_of(self.job)
        splits, slices = deal_rows(dealing, rows, task, self._fates())
        keys = {
            number: self.transport.key(number, place % reducers, reducers)
            for place, number in enumerate(self.job["todo"])
        }
        wanted = np.isin(slices, self.job["todo"])
        examples = self.transport.send(normalized, part, rows, wanted)
        chosen = rows["key"].filter(wanted).to_pylist()
        for number, key, value in zip(slices[wanted].tolist(), chosen, examples, strict=True):
            yield keys[number], (order_key(key, dealing.plan.seed), value)
        sums = PixelSums()
        sums.add(rows.filter(splits == dealing.splits.index("train")))
        publish_bytes(sums_place(open_place(self.job["folder"]), part), self.attempts, json_bytes(vars(sums)))
        self.count_task(sum(rows["size"].to_pylist()), 0)

    def _fates(self) -> Place | None:
        return open_place(self.job["folder"]) / WORK_FOLDER / FATES_FILE if self.job["decided"] else None

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
        root = self.root
        stage = (remade_stage if values.get("as_before") else slices_stage)(root, values["name"])
        with TaskRunner(self, stage, values) as tasks:
            is_done = not self._shard(tasks, root, dict(values))
        show(shard_summary(stage, is_done))

    def _shard(self, tasks: TaskRunner, root: Place, values: dict[str, Any]) -> bool:
        """Plan, write and commit the slices; returns False if that was done before."""
        stage, normalized, overwrite = tasks.stage, normalized_stage(root), bool(values.get("overwrite"))
        marker, fingerprint = normalized.read_marker(), normalized.fingerprint()
        values |= recorded_values(root, values["name"]) if values.get("as_before") else {}
        if not overwrite and is_done_before(stage, values, fingerprint):
            return False
        earlier = find_earlier(root, values["splits_from"], stage, overwrite)
        lineage = lineage_of(values["splits_from"], earlier)
        if values.get("as_before") and earlier:
            lineage = lineage_in_place(root, earlier)
        plan = make_plan(root, values, marker, earlier)
        identity = {"config": plan.config.to_json(), "input": fingerprint}
        if stage.begin(identity, overwrite) is State.DONE:
            return False
        slices = _planned_slices(plan)
        tasks.run(self._plan_work(stage, plan, slices, marker))
        statistics = PixelSums()
        for part in marker["parts"]:
            statistics.merge(PixelSums(**sums_place(stage.folder, part["part"]).read_json()))
        manifest = build_manifest(
            stage,
            identity,
            marker,
            slices,
            statistics=statistics,
            told={"lineage": lineage, "known": plan.known, "left_out": plan.left_out},
            remembered={DEPARTED: plan.departed, CONTENTS: plan.contents, GROUPS: plan.groups},
        )
        stage.commit(manifest, tasks.record)
        return True

    def _plan_work(
        self, stage: Stage, plan: Plan, slices: Sequence[tuple[str, str, int]], normalized: Mapping[str, Any]
    ) -> Work:
        """Of the slices those that no interrupted run has written; the fates of images go to a table for all tasks."""
        todo = [number for number, (_, name, _) in enumerate(slices) if not facts_place(stage.folder, name).exists()]
        if plan.decided:
            fates = stage.work / FATES_FILE
            parquet_tables.write_tables(fates, stage.attempts, schemas.FATES, plan.decided.tables())
        root, transport = self.root, pick(self.root, self.options.runner)
        size = sum(part["bytes"] for part in normalized["parts"])
        records = sum(records for _, _, records in slices)
        worthwhile = min(worthwhile_tasks(size, records, TRANSPORTS[transport].RECEIVED), max(1, len(todo)))
        job = {
            "stage": "shard",
            "root": root.uri,
            "folder": stage.folder.uri,
            "config": plan.config.to_json(),
            "classes": normalized["classes"],
            "decided": plan.decided is not None,
            "counts": plan.dealing.plan.counts.tolist(),
            "slices": slices,
            "todo": todo,
            "transport": transport,
            "mappers": worthwhile_tasks(size, records, TRANSPORTS[transport].SENT),
            "reducers": self.number_of_reducers(worthwhile),
        }

        def watch() -> tuple[int, str]:
            published = {info.base_name for info in (stage.work / "slices").children()}
            read, parts = len((stage.work / SUMS_FOLDER).children()), len(normalized["parts"])
            done = sum(count for _, name, count in slices if facts_place(stage.folder, name).name in published)
            return done, f"{read} of {parts} parts read" if read < parts else ""

        return Work(job, plan if todo else [], job["mappers"], records, watch)


def _planned_slices(plan: Plan) -> list[tuple[str, str, int]]:
    """Split, name and number of examples of each slice."""
    records = [int(count) for count in plan.dealing.plan.slice_records()]
    names = slice_names(plan.config.slices, plan.config.workers, plan.config.groups)
    return [(split, name, count) for (split, name), count in zip(names, records, strict=True)]


def sums_place(folder: Place, part: str) -> Place:
    """Where a mapper leaves the sums over those pixels of a part that are in the training split."""
    return folder / WORK_FOLDER / SUMS_FOLDER / f"{part}.json"


if __name__ == "__main__":
    main(Shard)

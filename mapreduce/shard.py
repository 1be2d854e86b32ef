#!/usr/bin/env python3
"""Deal the normalised images to splits and slices, and write each slice as a TFRecord file in a seeded order.

    python mapreduce/shard.py -r local data/flowers --workers 8

The MapReduce shuffle is the global shuffle: a mapper's line names a part, it sends each record to its slice under a
seeded key, and the reducer of a slice writes the records in the order they come. Nothing is decoded.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from etl.config import DEFAULT_SPLIT, Fractions, ShardConfig, parse_split, resolve_slices
from etl.dealing import Dealing, Strata, resolve_fractions, split_sizes
from etl.manifest import PixelSums, build_manifest
from etl.options import HADOOP, SHARD_OPTIONS
from etl.parts import read_part, read_rows
from etl.publishing import publish_bytes
from etl.shares import SharePlan
from etl.slices import facts_place, slice_names, write_slice
from etl.stages import WORK_FOLDER, Stage, State, normalized_stage, slices_stage
from etl.storage import Place, open_place
from etl.summary import Summary, shard_summary
from mapreduce.partition import partition_key, slice_number
from mapreduce.protocol import RecordProtocol
from mapreduce.stagejob import StageJob, main
from mapreduce.work import Work, worthwhile_tasks

READ_FOLDER = "read"  # below the work folder: an empty file for each part that a mapper is done with


class Shard(StageJob):
    """Deal the normalised images under ROOT/normalized to slices under ROOT/slices/NAME."""

    OPTIONS = SHARD_OPTIONS
    EXAMPLE = "python mapreduce/shard.py -r local data/flowers --workers 8"
    INTERNAL_PROTOCOL = RecordProtocol
    SORT_VALUES = True

    def mapper(self, _: None, task: dict[str, Any]) -> Iterator[tuple[bytes, tuple[bytes, bytes]]]:
        """From the line of a part: each of its examples, under its slice's key and its order there."""
        normalized = open_place(self.job["root"]) / "normalized"
        config = ShardConfig.from_json(self.job["config"])
        plan = SharePlan(np.array(self.job["counts"], dtype=np.int64), tuple(config.slices.values()), config.seed)
        dealing = Dealing(Strata.of(config, self.job["classes"]), plan, tuple(config.slices), ())
        reducers = self.job["reducers"]
        keys = {
            number: partition_key(number, place % reducers, reducers) for place, number in enumerate(self.job["todo"])
        }
        rows = read_rows(normalized, task["part"], ["key", "label", "split", "size", "crc32c"])
        slices = dealing.deal(rows, np.array(task["first"], dtype=np.int64))[1].tolist()
        examples = read_part(normalized, task["part"], rows)
        for key, number, data in zip(rows["key"].to_pylist(), slices, examples, strict=True):
            if number in keys:
                yield keys[number], (order_key(key, config.seed), data)
        read = open_place(self.job["folder"]) / WORK_FOLDER / READ_FOLDER
        publish_bytes(read / task["part"], self.attempts, b"")  # for who watches
        self.count_task(sum(rows["size"].to_pylist()), 0)

    def reducer(self, key: bytes, values: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, int]]:
        """All examples of one slice, in their order: write it."""
        split, name, records = planned = self.job["slices"][slice_number(key)]
        facts = write_slice(open_place(self.job["folder"]), self.attempts, planned, (data for _, data in values))
        self.count_task(0, facts["bytes"])
        self.increment_counter("examples", split, records)
        yield name, records

    def stage_at(self, root: Place, values: dict[str, Any]) -> Stage:
        return slices_stage(root, values["name"])

    def prepare(self, root: Place, values: dict[str, Any], runner: str, overwrite: bool) -> Work | None:
        self.run_record.note(workers=values["workers"])
        self._normalized = normalized_stage(root).read_marker()
        parts = self._normalized["parts"]
        config = resolve_config(values, self._normalized)
        self._identity = {"config": config.to_json(), "input": normalized_stage(root).fingerprint()}
        if self.stage.begin(self._identity, overwrite) is State.DONE:
            return None
        dealing = Dealing.of_parts(config, len(self._normalized["classes"]), parts)
        self._statistics = sum_training_pixels(root / "normalized", parts, dealing)
        records = [int(count) for count in dealing.plan.slice_records()]
        names = slice_names(config.slices)
        self._slices = [(split, name, count) for (split, name), count in zip(names, records, strict=True)]
        folder = self.stage.folder
        todo = [number for number, (_, name, _) in enumerate(self._slices) if not facts_place(folder, name).exists()]
        tasks = worthwhile_tasks(sum(part["bytes"] for part in parts), sum(records))
        job = {
            "stage": "shard",
            "root": root.uri,
            "folder": folder.uri,
            "config": config.to_json(),
            "classes": len(self._normalized["classes"]),
            "counts": dealing.plan.counts.tolist(),
            "slices": self._slices,
            "todo": todo,
            "reducers": min(tasks, len(todo)) if runner == HADOOP else 1,
        }
        lines = [
            {"part": part["part"], "first": first.tolist()} for part, first in zip(parts, dealing.firsts, strict=True)
        ]
        (self.stage.work / READ_FOLDER).delete()
        return Work(job, lines if todo else [], tasks, sum(records), self._watch)

    def finish(self) -> None:
        manifest = build_manifest(self.stage, self._identity, self._normalized, self._slices, self._statistics)
        self.stage.commit(manifest, self.run_record)

    def summary(self, already_done: bool) -> Summary:
        return shard_summary(self.stage, already_done)

    def _watch(self) -> tuple[int, str]:
        work = self.stage.work
        published = {info.base_name for info in (work / "slices").children()}
        read, parts = len((work / READ_FOLDER).children()), len(self._normalized["parts"])
        done = [each for each in self._slices if facts_place(self.stage.folder, each[1]).name in published]
        examples = sum(records for _, _, records in done)
        return examples, f"{read} of {parts} parts read" if read < parts else ""


def order_key(key: str, seed: int) -> bytes:
    """Where an example comes within its slice: 32 hexadecimal digits of BLAKE2b (RFC 7693) over seed and key."""
    return hashlib.blake2b(f"{seed}\0{key}".encode(), digest_size=16).hexdigest().encode()


def resolve_config(values: dict[str, Any], normalized: dict[str, Any]) -> ShardConfig:
    """The configuration for these option values and this normalised dataset."""
    default = parse_split(DEFAULT_SPLIT)
    assert not isinstance(default, str)
    fractions: Fractions | None = resolve_fractions(values["split"], normalized["parts"], default)
    sizes = split_sizes(normalized["parts"], fractions)
    slices = resolve_slices(sizes, normalized["counts"]["bytes"], values["workers"], values["slices"])
    return ShardConfig(values["partition"], fractions, slices, values["seed"])


def sum_training_pixels(normalized: Place, parts: list[dict[str, Any]], dealing: Dealing) -> PixelSums:
    """The exact pixel sums of the training split, from the rows that ``dealing`` puts there."""
    total = PixelSums()
    for part, first in zip(parts, dealing.firsts, strict=True):
        rows = read_rows(normalized, part["part"], ["label", "split", "width", "height", "sums", "squares"])
        splits, _ = dealing.deal(rows, first)
        total.add(rows.filter(splits == dealing.splits.index("train")))
    return total


if __name__ == "__main__":
    main(Shard)

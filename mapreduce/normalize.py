#!/usr/bin/env python3
"""Decode every raw image once, convert it to one size and colour, and keep the result as one part for each pack.

    python mapreduce/normalize.py -r local data/flowers --size 224

Map-only: a mapper's line names a pack; counts and sums are in the rows of each part. If raw was renewed, the parts of
known packs are kept, and only new packs are decoded. With --retry-rejects a line names the next part of a pack with
rejects (`mapreduce.jobs.retry_rejects`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etl.errors import UsageError
from etl.images.config import NormalizeConfig
from etl.images.sandbox import DecodeWorker
from etl.normalized.part_writer import normalize_pack
from etl.normalized.parts import Origin, count_live_images, live_facts, pack_of, read_entry, rows_place, with_live
from etl.options.stage_options import NORMALIZE_OPTIONS, OVERWRITE, RETRY_REJECTS
from etl.progress import log
from etl.raw.packs import Removed
from etl.stages.layout import NORMALIZED_FORMAT, PARTS, normalized_stage, raw_stage
from etl.stages.marker import Generation
from etl.stages.run import Run
from etl.stages.stage import Stage, require
from etl.stages.summary import Summary, speed
from etl.storage.place import Place, open_place
from mapreduce.jobs.retry_rejects import LISTING, plan_retry, retried_entries, retry_facts
from mapreduce.jobs.stage_job import Show, StageJob, TaskRunner, Work, main, worthwhile_tasks


class Normalize(StageJob):
    """Normalize the raw images under ROOT/raw to ROOT/normalized."""

    OPTIONS = (*NORMALIZE_OPTIONS, RETRY_REJECTS, OVERWRITE)
    EXAMPLE = "python mapreduce/normalize.py -r local data/flowers --size 224"

    def run_mapper(self, step_num: int = 0) -> None:
        """Run mrjob's mapper, with one worker for all packs of the task."""
        with DecodeWorker(NormalizeConfig.from_json(self.job["config"])) as self._worker:
            super().run_mapper(step_num)

    def mapper(self, _: None, task: dict[str, Any]) -> Iterator[tuple[str, int]]:
        """From the line of a part: normalize the images of its pack, and publish the part."""
        root = open_place(self.job["root"])
        facts = normalize_pack(
            root / "raw",
            root / "normalized",
            Origin.of_part(task),
            self._worker,
            classes=self.job["classes"],
            staging=self.staging,
            report=lambda images: self.report(f"{task['part']}: {images} images"),
        )
        self.count_task(task["bytes"], facts["bytes"])
        self.increment_counter("images", "good", facts["records"])
        for reason, count in facts["rejects"]["by_reason"].items():
            self.increment_counter("images", reason, count)
        yield facts["part"], facts["records"]

    def run_stage(self, values: Mapping[str, Any], show: Show) -> None:
        stage = normalized_stage(self.root)
        drive = _retry_rejects if values["retry_rejects"] else _normalize
        is_done = drive(TaskRunner(self, stage, values), values)
        show(_summary(stage, is_done))


def _normalize(tasks: TaskRunner, values: Mapping[str, Any]) -> bool:
    """Normalize the packs of ``raw``; returns True if that was done before."""
    root, stage, overwrite = tasks.job.root, tasks.stage, bool(values.get("overwrite"))
    raw = raw_stage(root).read_generation()
    if values.get("recorded_options"):
        config = NormalizeConfig.from_json(stage.read_marker()["config"])
    else:
        config = NormalizeConfig.resolve(values, raw.marker["pixels"])
    identity = {"config": config.to_json(), "input": raw.fingerprint}
    parent = None if overwrite or not stage.marker.exists() else stage.read_generation()
    known = parts_by_pack(parent)
    if parent is not None:
        stage.refuse_another(parent.marker, {"config": identity["config"]})
        _require_same_packs(root, stage, parent, raw)
    if overwrite:
        run = stage.begin(identity, overwrite=True)
    else:
        run = stage.renew(identity, parent.fingerprint if parent else None)
    if run is None:
        return True
    with run:
        reused = [pack["images"] for pack in raw.entries if pack["name"] in known]
        tasks.record.note(reused=len(reused))
        new = [pack for pack in raw.entries if pack["name"] not in known]
        parts = [(Origin.of_pack(pack), pack["images"], pack["bytes"]) for pack in new]
        tasks.run(run, _plan_work(tasks, config, raw.marker["classes"], parts, sum(reused)))
        entries = _entries(root, stage, raw, known)
        marker = _new_marker(run, identity, parent, raw.marker, entries, max_rejects=values["max_rejects"])
        raw_stage(root).require_generation(raw.fingerprint)
        run.commit(marker, tasks.record)
    return False


def _retry_rejects(tasks: TaskRunner, values: Mapping[str, Any]) -> bool:
    """Retry the rejects of the finished stage; returns True if that changed nothing."""
    if values.get("overwrite"):
        raise UsageError("--retry-rejects and --overwrite contradict each other; give one of them")
    root, stage = tasks.job.root, tasks.stage
    parent, config = plan_retry(root, stage, values)
    known = parent.marker  # with its own classes and removed images
    identity = {"config": config.to_json(), "input": known["input"]}
    retried = [part for part in parent.entries if live_facts(part)["rejects"]["count"]]
    if not retried and known["config"] == identity["config"]:
        log(stage.name, f"{stage.folder} has no rejects to retry")
        return True
    run = stage.renew(identity, parent.fingerprint, LISTING, force=True, changes=frozenset({"config"}))
    assert run is not None
    with run:
        parts = [(Origin.of_part(part).next(), part["input"], part["bytes"]) for part in retried]
        tasks.run(run, _plan_work(tasks, config, known["classes"], parts))
        entries = retried_entries(run, root, parent, retried, config)
        tasks.record.note(**retry_facts(parent, retried, entries))
        if known["config"] == identity["config"] and list(parent.entries) == entries:
            log(stage.name, f"{stage.folder}: no reject became good, or has another reason")
            run.abandon()
            return True
        marker = _new_marker(run, identity, parent, known, entries)
        raw_stage(root).require_generation(known["input"])
        run.commit(marker, tasks.record)
    return False


def _plan_work(
    tasks: TaskRunner,
    config: NormalizeConfig,
    classes: Sequence[str],
    parts: Sequence[tuple[Origin, int, int]],
    reused: int = 0,
) -> Work:
    """The work of making these parts, each with the images and bytes of its pack, beside ``reused`` images."""
    folder = tasks.stage.folder
    todo = [part for part in parts if not rows_place(folder, part[0].part).exists()]
    tasks.record.note(decoded=sum(images for _, images, _ in todo))

    def watch() -> tuple[int, str]:
        published = {info.base_name for info in (folder / "parts").children()}
        done = (images for origin, images, _ in parts if rows_place(folder, origin.part).name in published)
        return reused + sum(done), ""

    job = {"stage": "normalize", "root": tasks.job.root.uri, "config": config.to_json(), "classes": classes}
    lines = [origin.to_json() | {"bytes": size_bytes} for origin, _, size_bytes in todo]
    number = worthwhile_tasks(sum(size for _, _, size in todo), sum(images for _, images, _ in todo))
    total = reused + sum(images for _, images, _ in parts)
    return Work(job, lines, number, total, watch, config.limits.memory_bytes)


def _require_same_packs(root: Place, stage: Stage, parent: Generation, raw: Generation) -> None:
    """Raise UsageError unless the packs are those of the parts of ``parent``, or a renewal of them."""
    known = parts_by_pack(parent)
    other = [pack["name"] for pack in raw.entries if _is_other(known.get(pack["name"]), pack)]
    if other or raw_stage(root).find_generation(parent.marker["input"]) is None:
        raise UsageError(
            f"{stage.folder} was made from other packs than {raw_stage(root).marker} names now"
            f" ({other[0] if other else 'none of its generations is that input'});"
            " use another place, or --overwrite to replace it"
        )


def _new_marker(
    run: Run,
    identity: Mapping[str, Any],
    parent: Generation | None,
    raw: Mapping[str, Any],
    parts: list[dict[str, Any]],
    *,
    max_rejects: float = 1.0,
) -> dict[str, Any]:
    """Publish the table of these parts; return the marker that names it.

    Raises DataError if all images, or more than ``max_rejects`` of them, are rejects.
    """
    rejects = run.folder / "rejects"
    counts = count_live_images(parts, len(raw["classes"]))
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts["rejects_by_reason"].items())
    require(
        counts["rejects"] <= max_rejects * counts["input"],
        f"{counts['rejects']} of {counts['input']} images are unusable ({reasons}), more than --max-rejects"
        f" {max_rejects:g}; look at {rejects}, or allow more",
    )
    require(counts["good"] > 0, f"no image of {run.folder} is usable; look at {rejects}")
    return {
        "format": NORMALIZED_FORMAT,
        **identity,
        "parent": parent.fingerprint if parent else None,
        "classes": raw["classes"],
        "counts": counts,
        "removed": raw["removed"],
        PARTS.name: PARTS.publish(run.folder, run.staging, parts),
    }


def _entries(root: Place, stage: Stage, raw: Generation, known: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The entry of each part: facts that never change, and counts of its live images."""
    removed, classes = Removed.read(root, raw.marker), len(raw.marker["classes"])
    entries = []
    for pack in raw.entries:
        entry = known.get(pack["name"])
        if entry is None:
            entry = read_entry(stage.folder, Origin.of_pack(pack), pack["images"], removed, classes)
        elif entry["removed"] != pack["removed"]:  # removed images stay removed: the same number means the same ones
            entry = with_live(stage.folder, entry, removed, classes)
        live = live_facts(entry)
        require(
            live["records"] + live["rejects"]["count"] == pack["images"] - pack["removed"],
            f"{rows_place(stage.folder, entry['part'])}: {live['records']} good + {live['rejects']['count']}"
            f" rejects are not the {pack['images'] - pack['removed']} images of the pack",
        )
        entries.append(entry)
    return entries


def parts_by_pack(generation: Generation | None) -> dict[str, dict[str, Any]]:
    """The entry for the part of each pack, by the name of the pack; none without a generation."""
    return {pack_of(part): part for part in generation.entries} if generation else {}


def _is_other(part: Mapping[str, Any] | None, pack: Mapping[str, Any]) -> bool:
    """True if a part was made from other bytes than those of the pack that has its name."""
    made_of = ("pack_sha256", "list_sha256")
    return part is not None and tuple(map(part.get, made_of)) != (pack["sha256"], pack["list_sha256"])


def _summary(stage: Stage, already_done: bool) -> Summary:
    """The facts of a finished ``normalized``."""
    marker, run = stage.read_marker(), stage.read_run()
    counts = marker["counts"]
    parts = marker["parts"]["rows"]
    facts: dict[str, Any] = {
        "images": counts["input"],
        "good": counts["good"],
        "rejects": counts["rejects"],
        "rejects_by_reason": counts["rejects_by_reason"],
        "decoded": 0 if already_done else run.get("decoded", 0),
        **{name: run[name] for name in ("rejects_tried", "now_good") if name in run and not already_done},
        "parts": parts,
        "reused_parts": parts if already_done else run.get("reused", 0),
        "bytes": counts["bytes"],
        **speed(run.get("decoded", 0), run.get("seconds", 0.0)),
    }
    rows = [[name, count] for name, count in zip(marker["classes"], counts["by_class"], strict=True)]
    tables = [("good images by class", ["class", "images"], rows)]
    brief = ("images", "good", "rejects", *(["rejects_by_reason"] if counts["rejects"] else []), "parts", "seconds")
    return Summary(stage.name, str(stage.folder), already_done, facts, tables, brief)


if __name__ == "__main__":
    main(Normalize)

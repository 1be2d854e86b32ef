#!/usr/bin/env python3
"""Decode every raw image once, convert it to one size and colour, and keep the result as one part for each pack.

    python mapreduce/normalize.py -r local data/flowers --size 224

Map-only: a mapper's line names a pack; counts and sums are in the rows of each part. If raw was renewed, the parts of
known packs are kept, and only new packs are decoded.

With --retry-rejects a finished stage is renewed with looser limits, or after decoders were slow or crashed: packs with
rejects are normalized again, to a part under the next name of their old part. If the new part has the same images, it
is deleted, and the old part stays, with the limits of its own time in the marker.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etl.errors import DataError, UsageError
from etl.images.config import FLAGS, NormalizeConfig
from etl.images.sandbox import DecodeWorker
from etl.normalized.part_writer import normalize_pack
from etl.normalized.parts import (
    Origin,
    count_live_images,
    live_facts,
    pack_of,
    read_entry,
    read_rows,
    records_place,
    rejects_places,
    rows_place,
    with_live,
)
from etl.options.stage_options import NORMALIZE_OPTIONS, OVERWRITE, RETRY_REJECTS
from etl.progress import log
from etl.raw.packs import RemovedRows
from etl.stages.layout import NORMALIZED_FORMAT, PARTS, normalized_stage, raw_stage
from etl.stages.marker import Generation
from etl.stages.run import Run
from etl.stages.stage import Stage, require
from etl.stages.summary import Summary, speed
from etl.storage.place import Place, open_place
from mapreduce.jobs.stage_job import Show, StageJob, TaskRunner, Work, main, worthwhile_tasks

LISTING = "rejects, tried again"  # in the plan of the stage, so that only another retry resumes it

Part = Mapping[str, Any]  # its entry in the marker


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
    root, stage, overwrite = tasks.job.root, tasks.stage, values["overwrite"]
    raw = raw_stage(root).read_generation()
    if values.get("recorded_options"):
        config = NormalizeConfig.from_json(stage.read_marker()["config"])
    else:
        config = NormalizeConfig.resolve(values, raw.marker["pixels"])
    identity = {"config": config.to_json(), "input": raw.fingerprint}
    parent = None if overwrite or not stage.marker.exists() else stage.read_generation()
    known = {pack_of(part): part for part in parent.entries} if parent else {}
    if parent is not None:
        stage.refuse_another(parent.marker, {"config": identity["config"]})
        _input_of(root, parent)  # else its parts may be of other packs with the same names
    run = stage.renew(identity, parent.fingerprint if parent else None, overwrite=overwrite)
    if run is None:
        return True
    with run:
        reused = [pack["images"] for pack in raw.entries if pack["name"] in known]
        tasks.record.note(reused=len(reused))
        new = [pack for pack in raw.entries if pack["name"] not in known]
        parts = [(Origin.of_pack(pack), pack["images"], pack["bytes"]) for pack in new]
        tasks.run(run, _plan_work(tasks, config, raw.marker["classes"], parts, sum(reused)))
        entries = _entries(root, stage, raw, known)
        _commit(tasks, run, identity, parent, raw.marker, parts=entries, max_rejects=values["max_rejects"])
    return False


def _retry_rejects(tasks: TaskRunner, values: Mapping[str, Any]) -> bool:
    """Retry the rejects of the finished stage; returns True if that changed nothing."""
    if values["overwrite"]:
        raise UsageError("--retry-rejects and --overwrite contradict each other; give one of them")
    root, stage = tasks.job.root, tasks.stage
    parent, config = _plan_retry(root, stage, values)
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
        entries = _retried_entries(run, root, parent, retried, config)
        tasks.record.note(**_retry_facts(parent, retried, entries))
        if known["config"] == identity["config"] and list(parent.entries) == entries:
            log(stage.name, f"{stage.folder}: no reject became good, or has another reason")
            run.abandon()
            return True
        _commit(tasks, run, identity, parent, known, parts=entries)
    return False


def _plan_retry(root: Place, stage: Stage, values: Mapping[str, Any]) -> tuple[Generation, NormalizeConfig]:
    """The generation whose rejects are tried again with these values of options, and the configuration that they give.

    Raises UsageError if ``stage`` is unfinished, or if options other than limits differ.
    """
    parent = stage.read_generation()
    config = NormalizeConfig.resolve(values, _input_of(root, parent).marker["pixels"])
    _require_looser_limits(parent.marker["config"], config)
    planned = stage.read_identity()
    if planned is not None and planned["input"] != parent.marker["input"]:
        raise UsageError(f"{stage.folder} is unfinished; first run normalize without --retry-rejects")
    return parent, config


def _retried_entries(
    run: Run, root: Place, parent: Generation, retried: Sequence[Part], config: NormalizeConfig
) -> list[dict[str, Any]]:
    """The entries of the next generation after ``parent``; deletes new parts that are equal to those ``retried``.

    Raises DataError if a task has not published its part, or if a good image has changed.
    """
    removed, classes = RemovedRows.read(root, parent.marker), len(parent.marker["classes"])
    made = {
        part["part"]: read_entry(run.folder, Origin.of_part(part).next(), part["input"], removed, classes)
        for part in retried
    }
    entries, faults = list[dict[str, Any]](), list[str]()
    for part in parent.entries:
        entry = made.get(part["part"])
        is_unchanged = entry is not None and (  # the same records, and as many rejects for each reason
            (entry["sha256"], entry["rejects"]["by_reason"]) == (part["sha256"], part["rejects"]["by_reason"])
        )
        changed = entry and not is_unchanged and _changed_image(run.folder, part["part"], entry["part"])
        if entry is not None and (is_unchanged or changed):
            run.delete(run.folder / file for file in PARTS.files(entry))
        if changed:
            faults.append(f"{rows_place(run.folder, part['part'])}: {changed}")
        entries.append(_kept_entry(part, parent.marker, config) if entry is None or is_unchanged else entry)
    if faults:
        raise DataError(
            f"{faults[0]} is not what it was (other versions of libraries, or a decoder that was too slow); run"
            " again, or normalize again with --overwrite"
        )
    return entries


def _retry_facts(parent: Generation, retried: Sequence[Part], entries: Sequence[Part]) -> dict[str, Any]:
    """The facts of a retry for ``run.json``."""
    before = set(parent.entries.column("part"))
    tried, left = (sum(live_facts(part)["rejects"]["count"] for part in parts) for parts in (retried, entries))
    reused, decoded = sum(part["part"] in before for part in entries), sum(part["input"] for part in retried)
    return {"decoded": decoded, "reused": reused, "rejects_tried": tried, "now_good": tried - left}


def _require_looser_limits(recorded: Mapping[str, Any], config: NormalizeConfig) -> None:
    """Raise UsageError unless ``config`` is the ``recorded`` one with limits that allow as much or more."""
    for name, value in config.to_json().items():
        if name != "limits" and recorded.get(name) != value:
            raise UsageError(
                f"--{name.replace('_', '-')}: {recorded.get(name)} there, {value} asked; --retry-rejects only takes"
                f" looser limits ({', '.join(FLAGS.values())})"
            )
    config.limits.refuse_less_than(NormalizeConfig.from_json(recorded).limits)


def _changed_image(normalized: Place, part: str, made: str) -> str | None:
    """The key of an image whose record in ``part`` is not in the part that was ``made`` in its place, if any."""
    old, new = (read_rows(normalized, name, ["key", "crc32c"]).to_pylist() for name in (part, made))
    kept = {row["key"]: row["crc32c"] for row in new}
    return next((row["key"] for row in old if kept.get(row["key"]) != row["crc32c"]), None)


def _kept_entry(part: Mapping[str, Any], marker: Mapping[str, Any], config: NormalizeConfig) -> dict[str, Any]:
    """The next marker's entry for a part that stays: with its ``limits``, if those of ``config`` are others.

    A part without rejects is the same with any limits that allow more.
    """
    limits = part.get("limits", marker["config"]["limits"])
    entry = {name: value for name, value in part.items() if name != "limits"}
    return entry | ({"limits": limits} if part["rejects"]["count"] and limits != vars(config.limits) else {})


def _plan_work(
    tasks: TaskRunner,
    config: NormalizeConfig,
    classes: Sequence[str],
    parts: Sequence[tuple[Origin, int, int]],
    reused: int = 0,
) -> Work:
    """The work of making these parts, each with the images and bytes of its pack, beside ``reused`` images."""
    folder, total = tasks.stage.folder, reused + sum(images for _, images, _ in parts)

    def unfinished() -> list[tuple[Origin, int, int]]:
        files = {info.base_name for info in (folder / "parts").children()}
        return [part for part in parts if rows_place(folder, part[0].part).name not in files]

    def watch() -> tuple[int, str]:
        return total - sum(images for _, images, _ in unfinished()), ""

    def incomplete() -> Iterator[Place]:
        """Records and rejects of a part without rows: this time an image may be on the other side of a limit."""
        there = {info.base_name for name in ("parts", "rejects") for info in (folder / name).children()}
        for origin, _, _ in unfinished():  # by now: the tasks of an earlier run may have ended some of ``todo``
            files = records_place(folder, origin.part), *rejects_places(folder, origin.part)
            yield from (file for file in files if file.name in there)

    todo = unfinished()
    tasks.record.note(decoded=sum(images for _, images, _ in todo))
    job = {"stage": "normalize", "root": tasks.job.root.uri, "config": config.to_json(), "classes": classes}
    lines = [origin.to_json() | {"bytes": size_bytes} for origin, _, size_bytes in todo]
    number = worthwhile_tasks(sum(size for _, _, size in todo), sum(images for _, images, _ in todo))
    return Work(job, lines, number, total, watch, config.limits.memory_bytes, incomplete)


def _input_of(root: Place, parent: Generation) -> Generation:
    """The generation of ``raw`` that ``parent`` was made from. Raises UsageError if there is none any more."""
    raw = raw_stage(root)
    found = raw.find_generation(parent.marker["input"])
    if found is None:
        raise UsageError(
            f"{parent.folder} was made from other packs than {raw.marker} names now (none of its generations is that"
            " input); use another place, or replace it: ringslice normalize --overwrite"
        )
    return found


def _commit(
    tasks: TaskRunner,
    run: Run,
    identity: Mapping[str, Any],
    parent: Generation | None,
    raw: Mapping[str, Any],
    *,
    parts: list[dict[str, Any]],
    max_rejects: float = 1.0,
) -> None:
    """Publish the table of these parts, and the marker that names it.

    Raises DataError if all images, or more than ``max_rejects`` of them, are rejects.
    """
    rejects = run.folder / "rejects"
    counts = count_live_images(parts, len(raw["classes"]))
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts["rejects_by_reason"].items())
    require(
        counts["rejects"] / max(1, counts["input"]) <= max_rejects,
        f"{counts['rejects']} of {counts['input']} images are unusable ({reasons}), more than --max-rejects"
        f" {max_rejects:g}; look at {rejects}, or allow more",
    )
    require(counts["good"] > 0, f"no image of {run.folder} is usable; look at {rejects}")
    marker = {
        "format": NORMALIZED_FORMAT,
        **identity,
        "parent": parent.fingerprint if parent else None,
        "classes": raw["classes"],
        "counts": counts,
        "removed": raw["removed"],
        PARTS.name: PARTS.publish(run.folder, run.staging, parts),
    }
    raw_stage(tasks.job.root).require_generation(identity["input"])
    run.commit(marker, tasks.record)


def _entries(root: Place, stage: Stage, raw: Generation, known: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The entry of each part: facts that never change, and counts of its live images."""
    removed, classes = RemovedRows.read(root, raw.marker), len(raw.marker["classes"])
    entries = []
    for pack in raw.entries:
        entry = known.get(pack["name"])
        if entry is None:
            entry = read_entry(stage.folder, Origin.of_pack(pack), pack["images"], removed, classes)
        elif entry["removed"] != pack["removed"]:  # removed images stay removed: the same number means the same ones
            entry = with_live(stage.folder, entry, removed, classes)
        entries.append(entry)
    return entries


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

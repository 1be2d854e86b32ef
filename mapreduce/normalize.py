#!/usr/bin/env python3
"""Decode every raw image once, bring it to one size and colour, and keep the result as one part for each pack.

    python mapreduce/normalize.py -r local data/flowers --size 224

Map-only: a mapper's line names a pack; counts and sums travel in each part's own rows. Where raw was renewed, so are
the normalised images: parts of packs that are known are kept, and only new packs are decoded. With --retry-rejects a
line names the next part of a pack with rejects (`mapreduce.jobs.retry_rejects`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etl.errors import DataError, UsageError
from etl.formats.parquet_tables import read_facts
from etl.images.config import NormalizeConfig
from etl.images.sandbox import DecodeWorker
from etl.normalized.live_rows import count_live, count_live_images, live_facts
from etl.normalized.part_writer import normalize_pack
from etl.normalized.parts import Origin, pack_of, rows_place
from etl.options.stage_options import NORMALIZE_OPTIONS, RETRY_REJECTS
from etl.progress import log
from etl.raw.removed import Removed
from etl.stages.layout import NORMALIZED_FORMAT, normalized_stage, raw_stage
from etl.stages.marker import Generation
from etl.stages.stage import Stage, require
from etl.stages.summary import Summary, speed
from etl.storage.place import Place, open_place
from mapreduce.jobs.retry_rejects import Retry
from mapreduce.jobs.stage_job import StageJob, main
from mapreduce.jobs.work import Work, worthwhile_tasks


class Normalize(StageJob):
    """Normalise the raw images under ROOT/raw into ROOT/normalized."""

    OPTIONS = (*NORMALIZE_OPTIONS, RETRY_REJECTS)
    EXAMPLE = "python mapreduce/normalize.py -r local data/flowers --size 224"

    _retry: Retry | None = None
    _unchanged = False

    def run_mapper(self, step_num: int = 0) -> None:
        """One worker for all packs of a task, ended with it. Overrides mrjob's, which it calls."""
        with DecodeWorker(NormalizeConfig.from_json(self.job["config"])) as self._worker:
            super().run_mapper(step_num)

    def mapper(self, _: None, task: dict[str, Any]) -> Iterator[tuple[str, int]]:
        """From the line of a part: normalise the images of its pack and publish it."""
        root = open_place(self.job["root"])
        facts = normalize_pack(
            root / "raw",
            root / "normalized",
            Origin.of_part(task),
            self._worker,
            classes=self.job["classes"],
            attempts=self.attempts,
            report=lambda images: self.report(f"{task['part']}: {images} images"),
        )
        self.count_task(task["bytes"], facts["bytes"])
        self.increment_counter("images", "good", facts["records"])
        for reason, count in facts["rejects"]["by_reason"].items():
            self.increment_counter("images", reason, count)
        yield facts["part"], facts["records"]

    def stage_at(self, root: Place, values: dict[str, Any]) -> Stage:
        return normalized_stage(root)

    def prepare(self, root: Place, values: dict[str, Any], runner: str, overwrite: bool) -> Work | None:
        self._root, self._max_rejects = root, values["max_rejects"]
        if values["retry_rejects"]:
            if overwrite:
                raise UsageError("--retry-rejects and --overwrite contradict each other; give one of them")
            return self._prepare_retry(Retry.plan(root, self.stage, values))
        raw = raw_stage(root).read_generation()
        self._raw = raw.marker
        config = NormalizeConfig.resolve(values, self._raw["pixels"])
        if values.get("recorded_options"):
            config = NormalizeConfig.from_json(self.stage.read_marker()["config"])
        self._identity = {"config": config.to_json(), "input": raw.fingerprint}
        self._parent = None if overwrite or not self.stage.marker.exists() else self.stage.read_generation()
        if self._parent is not None:
            self._require_same_packs(self._parent)
        if overwrite:
            self.stage_run = self.stage.begin(self._identity, overwrite=True)
        else:
            self.stage_run = self.stage.renew(self._identity, self._parent.fingerprint if self._parent else None)
        return self._plan(config) if self.stage_run else None

    def _prepare_retry(self, retry: Retry) -> Work | None:
        self._retry, self._parent, self._identity = retry, retry.parent, retry.identity
        self._raw = retry.parent.marker  # classes and what is removed are those of then
        self.stage_run = retry.begin()
        if self.stage_run is None:
            return None
        todo = [(Origin.of_part(part).next(), part["input"], part["bytes"]) for part in retry.parts]
        return self._work(todo, 0, retry.config)

    def _require_same_packs(self, parent: Generation) -> None:
        """Raise UsageError where the packs are not those, renewed, that the parts of ``parent`` were made of."""
        self.stage.refuse_another(parent.marker, {"config": self._identity["config"]})
        known = parts_by_pack(parent)
        other = [pack["name"] for pack in self._raw["packs"] if _is_other(known.get(pack["name"]), pack)]
        if other or raw_stage(self._root).find_generation(parent.marker["input"]) is None:
            raise UsageError(
                f"{self.stage.folder} was made from other packs than {raw_stage(self._root).marker} names now"
                f" ({other[0] if other else 'none of its generations is that input'});"
                " use another place, or --overwrite to replace it"
            )

    def _plan(self, config: NormalizeConfig) -> Work:
        images = {pack["name"]: pack["images"] for pack in self._raw["packs"]}
        known = parts_by_pack(self._parent).keys() & images.keys()
        new = [pack for pack in self._raw["packs"] if pack["name"] not in known]
        reused = sum(images[pack] for pack in known)
        self.run_record.note(reused=len(known))
        return self._work([(Origin.of_pack(pack), pack["images"], pack["bytes"]) for pack in new], reused, config)

    def _work(self, parts: Sequence[tuple[Origin, int, int]], reused: int, config: NormalizeConfig) -> Work:
        """The work of making these parts, each with the images and bytes of its pack, besides ``reused`` images."""
        folder = self.stage.folder
        todo = [part for part in parts if not rows_place(folder, part[0].part).exists()]
        self.run_record.note(decoded=sum(images for _, images, _ in todo))

        def watch() -> tuple[int, str]:
            published = {info.base_name for info in (folder / "parts").children()}
            done = (images for origin, images, _ in parts if rows_place(folder, origin.part).name in published)
            return reused + sum(done), ""

        job = {
            "stage": "normalize",
            "root": self._root.uri,
            "config": config.to_json(),
            "classes": self._raw["classes"],
        }
        lines = [origin.to_json() | {"bytes": size_bytes} for origin, _, size_bytes in todo]
        tasks = worthwhile_tasks(sum(size for _, _, size in todo), sum(images for _, images, _ in todo))
        total = reused + sum(images for _, images, _ in parts)
        return Work(job, lines, tasks, total, watch, config.limits.memory_bytes)

    def finish(self) -> None:
        facts = self._retry.entries(self.open_run) if self._retry else self._checked_parts()
        if self._retry:
            self.run_record.note(**self._retry.notes(facts))
            if self._retry.changes_nothing(facts):
                log(self.stage.name, f"no reject of {self.stage.folder} is good now, or one for another reason")
                self._unchanged = True
                self.open_run.abandon()
                return
        counts = count_live_images(facts, len(self._raw["classes"]))
        self._require_enough(counts)
        marker = {
            "format": NORMALIZED_FORMAT,
            **self._identity,
            "parent": self._parent.fingerprint if self._parent else None,
            "classes": self._raw["classes"],
            "counts": counts,
            "removed": self._raw["removed"],
            "parts": facts,
        }
        self.open_run.commit(marker, self.run_record)

    def _require_enough(self, counts: dict[str, Any]) -> None:
        """Raise DataError where too many images are rejects; those of a finished normalisation were not too many."""
        if counts["rejects"] > self._max_rejects * counts["input"] and not self._retry:
            reasons = ", ".join(f"{count} {reason}" for reason, count in counts["rejects_by_reason"].items())
            raise DataError(
                f"{counts['rejects']} of {counts['input']} images are unusable ({reasons}),"
                f" more than --max-rejects {self._max_rejects:g};"
                f" look at {self.stage.folder / 'rejects'}, or allow more"
            )
        require(
            counts["good"] > 0, f"no image of {self.stage.folder} is usable; look at {self.stage.folder / 'rejects'}"
        )

    def summary(self, already_done: bool) -> Summary:
        return _summary(self.stage, already_done or self._unchanged)

    def _checked_parts(self) -> list[dict[str, Any]]:
        """What the marker says of each part: facts that never change, and what of it is live."""
        removed = Removed.read(self._root, self._raw)
        known = parts_by_pack(self._parent)
        parts = []
        for pack in self._raw["packs"]:
            before = known.get(pack["name"])
            facts = self._checked_facts(pack) if before is None else _without_live(before)
            facts["removed"] = pack["removed"]
            if pack["removed"] and before is not None and before["removed"] == pack["removed"]:
                facts["live"] = before["live"]  # what is removed stays so: as many are the same
            elif pack["removed"]:
                facts["live"] = count_live(self.stage.folder, facts, removed, len(self._raw["classes"]))
            live = live_facts(facts)
            total = live["records"] + live["rejects"]["count"]
            require(
                facts["input"] == pack["images"] and total == pack["images"] - pack["removed"],
                f"{rows_place(self.stage.folder, facts['part'])}: {live['records']} good + {live['rejects']['count']}"
                f" rejects are not the {pack['images'] - pack['removed']} images of the pack",
            )
            parts.append(facts)
        return parts

    def _checked_facts(self, pack: dict[str, Any]) -> dict[str, Any]:
        """The facts of a part that this run, or one that it goes on with, has made."""
        rows = rows_place(self.stage.folder, pack["name"])
        require(rows.exists(), f"{rows} is missing though the job ended; run again")
        facts = read_facts(rows)
        require(not _is_other(facts, pack), f"{rows} was made from another pack; normalize again with --overwrite")
        return facts | {"rows_sha256": rows.sha256()}


def parts_by_pack(generation: Generation | None) -> dict[str, dict[str, Any]]:
    """What a generation of ``normalized``, where there is one, says of the part of each pack."""
    return {pack_of(part): part for part in generation.marker["parts"]} if generation else {}


def _is_other(part: Mapping[str, Any] | None, pack: Mapping[str, Any]) -> bool:
    """Whether a part was made from other bytes than those of the pack that has its name."""
    made_of = ("pack_sha256", "list_sha256")
    return part is not None and tuple(map(part.get, made_of)) != (pack["sha256"], pack["list_sha256"])


def _without_live(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in ("removed", "live")}


def _summary(stage: Stage, already_done: bool) -> Summary:
    """The facts of a finished ``normalized``."""
    marker, run = stage.read_marker(), stage.read_run()
    counts = marker["counts"]
    parts = len(marker["parts"])
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

"""The rejects of a finished normalisation, tried again: what the driver plans, and what it makes of the results.

The finished stage is renewed as its next generation, see `etl.normalized.retry_rejects` for its parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from etl.errors import UsageError
from etl.images.config import NormalizeConfig
from etl.normalized.live_rows import live_facts
from etl.normalized.retry_rejects import (
    RETRY,
    RejectsAgain,
    kept_entry,
    parts_to_try,
    require_other_limits_only,
    stays_folder,
)
from etl.progress import log
from etl.raw.removed import Removed
from etl.stages.layout import raw_stage
from etl.stages.marker import Generation
from etl.stages.run import Run
from etl.stages.stage import Stage
from etl.storage.place import Place
from mapreduce.jobs.work import Work, worthwhile_tasks

# what a task needs to know of a part
NEEDED = ("part", "pack", "pack_sha256", "list_sha256", "rows_sha256", "records", "bytes", "rejects")


@dataclass(frozen=True)
class Retry:
    """Tries the rejects of ``parent``, a generation of ``stage``, again with ``config``."""

    root: Place
    stage: Stage
    parent: Generation
    config: NormalizeConfig

    @classmethod
    def plan(cls, root: Place, stage: Stage, values: Mapping[str, Any]) -> "Retry":
        """For these option values. Raises UsageError where ``stage`` is not finished, or more than limits differ."""
        parent = stage.read_generation()
        raw = raw_stage(root).find_generation(parent.marker["input"])
        if raw is None:
            raise UsageError(f"{stage.folder} was made from other packs than {raw_stage(root).folder} has or had")
        config = NormalizeConfig.resolve(values, raw["pixels"])
        require_other_limits_only(parent.marker["config"], config)
        planned = stage.plan.read_json() if stage.plan.exists() else None
        if planned is not None and planned["identity"]["input"] != parent.marker["input"]:
            raise UsageError(f"{stage.folder} was begun anew and is not finished; first run it without --retry-rejects")
        return cls(root, stage, parent, config)

    @property
    def identity(self) -> dict[str, Any]:
        """The same input, the limits of now."""
        return {"config": self.config.to_json(), "input": self.parent.marker["input"]}

    @cached_property
    def _parts(self) -> list[RejectsAgain]:
        raw, normalized = self.root / "raw", self.stage.folder
        return [RejectsAgain(raw, normalized, part) for part in parts_to_try(self.parent.marker)]

    def begin(self) -> Run | None:
        """Begin the renewal, which may be of the limits alone; None if there is no reject, and no other limit."""
        if not self._parts and self.parent.marker["config"] == self.config.to_json():
            log(self.stage.name, f"{self.stage.folder} has no rejects to try again")
            return None
        changes = frozenset({"config"})
        return self.stage.renew(self.identity, self.parent.fingerprint, RETRY, force=True, changes=changes)

    def plan_work(self) -> Work:
        """The work of its tasks."""
        todo = [each for each in self._parts if not (each.is_made or each.stays)]
        rejects = sum(each.part["rejects"]["count"] for each in todo)
        size_bytes = sum(each.part["bytes"] for each in todo)
        job = {
            "stage": "normalize",
            "root": self.root.uri,
            "config": self.config.to_json(),
            "classes": self.parent.marker["classes"],
        }
        lines = [{"retried": {name: each.part[name] for name in NEEDED if name in each.part}} for each in todo]
        total = sum(each.part["rejects"]["count"] for each in self._parts)
        tasks = worthwhile_tasks(size_bytes, rejects)
        return Work(job, lines, tasks, total, self._watch, self.config.limits.memory_bytes)

    def _watch(self) -> tuple[int, str]:
        folders = (self.stage.folder / "parts", stays_folder(self.stage.folder))
        made, stay = ({info.base_name for info in folder.children()} for folder in folders)
        return sum(each.part["rejects"]["count"] for each in self._parts if each.is_among(made, stay)), ""

    def entries(self) -> list[dict[str, Any]]:
        """What the next marker says of each part. Raises DataError where a task has not published what it should."""
        marker = self.parent.marker
        removed, tried = Removed.read(self.root, marker), {each.part["part"]: each for each in self._parts}
        return [
            tried[part["part"]].entry(marker, self.config, removed)
            if part["part"] in tried
            else kept_entry(part, marker, self.config)
            for part in marker["parts"]
        ]

    def changes_nothing(self, entries: list[dict[str, Any]]) -> bool:
        """Whether the marker says all this by now."""
        return (self.parent.marker["config"], self.parent.marker["parts"]) == (self.config.to_json(), entries)

    def notes(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """What ``run.json`` keeps of it."""
        before = {part["part"] for part in self.parent.marker["parts"]}
        tried = sum(live_facts(each.part)["rejects"]["count"] for each in self._parts)
        left = sum(live_facts(part)["rejects"]["count"] for part in entries)
        reused = len(before & {part["part"] for part in entries})
        return {"decoded": tried, "reused": reused, "rejects_tried": tried, "now_good": tried - left}

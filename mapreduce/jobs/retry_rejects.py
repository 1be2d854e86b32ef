"""Plan the retry of the rejects of a finished normalization, and make the entries of the next marker of the results.

The finished stage is renewed as its next generation: `etl.normalized.retry_rejects` has what becomes of its parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from etl.errors import DataError, UsageError
from etl.images.config import NormalizeConfig
from etl.normalized.live_rows import live_facts
from etl.normalized.parts import PART_FOLDERS, part_files, rows_place
from etl.normalized.retry_rejects import (
    changed_image,
    is_unchanged,
    kept_entry,
    new_entry,
    new_facts,
    parts_to_retry,
    require_looser_limits,
)
from etl.progress import log
from etl.raw.removed import Removed
from etl.stages.layout import raw_stage
from etl.stages.marker import Generation, Renewal
from etl.stages.stage import Stage
from etl.storage.place import Place

LISTING = "rejects, tried again"  # in the plan of the stage


@dataclass(frozen=True)
class Retry:
    """Normalizes those packs of ``parent``, a generation of ``stage``, again that have rejects, with ``config``."""

    root: Place
    stage: Stage
    parent: Generation
    config: NormalizeConfig

    @classmethod
    def plan(cls, root: Place, stage: Stage, values: Mapping[str, Any]) -> "Retry":
        """For these option values. Raises UsageError if ``stage`` is not finished, or more than limits differ."""
        parent = stage.read_generation()
        raw = raw_stage(root).find_generation(parent.marker["input"])
        if raw is None:
            raise UsageError(f"{stage.folder} was made from other packs than {raw_stage(root).folder} has or had")
        config = NormalizeConfig.resolve(values, raw["pixels"])
        require_looser_limits(parent.marker["config"], config)
        planned = stage.plan.read_json() if stage.plan.exists() else None
        if planned is not None and planned["identity"]["input"] != parent.marker["input"]:
            raise UsageError(f"{stage.folder} was begun anew and is not finished; first run it without --retry-rejects")
        return cls(root, stage, parent, config)

    @property
    def identity(self) -> dict[str, Any]:
        """The same input, the limits of now."""
        return {"config": self.config.to_json(), "input": self.parent.marker["input"]}

    @cached_property
    def parts(self) -> list[dict[str, Any]]:
        """The parts with rejects, as the marker of ``parent`` has them."""
        return parts_to_retry(self.parent.marker)

    def begin(self) -> bool:
        """Begin the renewal, which may be of the limits alone; False if there are no rejects, and no other limits."""
        if not self.parts and self.parent.marker["config"] == self.config.to_json():
            log(self.stage.name, f"{self.stage.folder} has no rejects to try again")
            return False
        changes = frozenset({"config"})
        renewal = Renewal(self.parent.fingerprint, PART_FOLDERS, part_files, wanted=True, changes=changes)
        self.stage.begin(self.identity, listing=LISTING, renewal=renewal)
        return True

    def entries(self) -> list[dict[str, Any]]:
        """The entries of the next marker, for which parts without changes are deleted.

        Raises DataError if a task has not published its part, or if a good image is no longer what it was.
        """
        normalized, marker = self.stage.folder, self.parent.marker
        made = {part["part"]: new_facts(normalized, part) for part in self.parts}
        unchanged = [part for part in self.parts if is_unchanged(part, made[part["part"]])]
        for part in unchanged:
            self._delete(made.pop(part["part"]))
        changed = {part: key for part, facts in made.items() if (key := changed_image(normalized, part, facts))}
        for part in changed:
            self._delete(made[part])
        for part, key in changed.items():
            raise DataError(
                f"{rows_place(normalized, part)}: {key} is not what it was (other versions of libraries, or a decoder"
                " that was too slow); run again, or normalize again with --overwrite"
            )
        removed = Removed.read(self.root, marker)
        return [
            new_entry(normalized, part, made[part["part"]], removed, len(marker["classes"]))
            if part["part"] in made
            else kept_entry(part, marker, self.config)
            for part in marker["parts"]
        ]

    def _delete(self, facts: Mapping[str, Any]) -> None:
        self.stage.delete_checked(self.stage.folder / file for file in part_files({"parts": [facts]}))

    def changes_nothing(self, entries: list[dict[str, Any]]) -> bool:
        """True if the marker has these entries and this configuration."""
        return (self.parent.marker["config"], self.parent.marker["parts"]) == (self.config.to_json(), entries)

    def notes(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """What ``run.json`` keeps of it."""
        before = {part["part"] for part in self.parent.marker["parts"]}
        tried = sum(live_facts(part)["rejects"]["count"] for part in self.parts)
        left = sum(live_facts(part)["rejects"]["count"] for part in entries)
        reused = len(before & {part["part"] for part in entries})
        decoded = sum(part["input"] for part in self.parts)
        return {"decoded": decoded, "reused": reused, "rejects_tried": tried, "now_good": tried - left}

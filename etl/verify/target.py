"""The set of slices that is verified, with the markers of all that it was made from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.errors import DataError
from etl.formats.json_schema import schema_fault
from etl.partition.config import SOURCE_SPLIT, ShardConfig
from etl.slices.history import removed_keys
from etl.slices.lineage import ParentSlices, finished_slices
from etl.slices.manifest import read_manifest, slices_of
from etl.slices.manifest_builder import image_of
from etl.slices.plan import Plan, plan_slices
from etl.stages.layout import normalized_stage, raw_stage, slices_stage
from etl.stages.stage import Stage
from etl.storage.place import Place
from etl.verify.findings import EARLIER, MANIFEST_FILE
from etl.verify.work_list import (
    Line,
    file_lines,
    kept_markers,
    part_lines,
    removed_files,
    slice_lines,
    stage_files,
    table_files,
)


@dataclass(frozen=True)
class Target:
    """Finished slices, and the markers of the normalised images that they were made from, and of those images' packs.

    Those are None if they are gone, and so is ``parent``, the slices whose splits were kept.
    """

    root: Place
    slices: Stage
    manifest: dict[str, Any]
    dataset: dict[str, Any] | None
    raw: dict[str, Any] | None
    parent: ParentSlices | None

    @classmethod
    def find(cls, root: Place, name: str) -> "Target":
        """The slices called ``name``.

        Raises UsageError if there are none of this version, DataError if a marker is not as it was written.
        """
        slices = slices_stage(root, name)
        if slices.marker.exists():
            try:
                json.loads(slices.marker.read_bytes())
            except ValueError as error:
                raise DataError(f"{slices.marker} was edited or damaged: it is no JSON ({error})") from None
        manifest = _require_shape(read_manifest(slices), slices)
        dataset = normalized_stage(root).find_generation(manifest["input"])
        if dataset is not None:
            image_of(_require_shape(dataset, normalized_stage(root)))  # a configuration that normalize takes
        raw = raw_stage(root).find_generation(dataset["input"]) if dataset is not None else None
        if raw is not None:
            _require_shape(raw, raw_stage(root))
        return cls(root, slices, manifest, dataset, raw, _find_parent(root, manifest["config"]["splits_from"]))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest."""
        return self.slices.fingerprint()

    @property
    def slice_names(self) -> list[str]:
        return [each["name"] for _, each in slices_of(self.manifest)]

    def find_slice(self, name: str) -> tuple[str, dict[str, Any]]:
        """The split of a slice, and its entry in the manifest."""
        return next((split, each) for split, each in slices_of(self.manifest) if each["name"] == name)

    @property
    def knows_parent(self) -> bool:
        """Whether it is known which splits were to be kept."""
        return self.parent is not None or self.manifest["config"]["splits_from"] is None

    def plan_again(self) -> Plan:
        """The plan that these slices were made by.

        Raises DataError if it does not come out as it was: images or earlier slices are damaged or gone.
        """
        if self.dataset is None or not self.knows_parent:
            raise DataError("the normalised images, or the slices whose splits were kept, are not there")
        recorded = self.manifest["config"]
        config = ShardConfig.from_json(recorded)
        values = vars(config) | {
            "split": SOURCE_SPLIT if config.split is None else config.split,
            "slices": config.slices["train"],
            "slice_size": 1,
        }
        # perhaps more than were given, by those that were removed before
        removed = removed_keys(self.slices.folder) if config.removed_keys else None
        plan = plan_slices(self.root, values, self.dataset, self.parent, removed)
        if plan.config.to_json() | {"removed_keys": None} != recorded | {"removed_keys": None}:
            raise DataError(f"a new plan is not the one of {self.slices.marker}")
        return plan

    def job(self, plan: Plan | None, assignments: Place | None) -> dict[str, Any]:
        """What tasks need to know: also of the new ``plan``, if there is one, and where its assignments are."""
        config, dataset = self.manifest["config"], self.dataset
        return {
            "root": self.root.uri,
            "folder": self.slices.folder.uri,
            "removed": dataset["removed"] if dataset else None,
            "group_by": config["group_by"],
            "classes": self.manifest["classes"],
            "image": self.manifest["image"],
            "normalized_image": image_of(dataset) if dataset else None,
            "seed": config["seed"],
            "plan": plan.slice_plan.to_json() if plan else None,
            "assignments": assignments.uri if assignments else None,
        }

    def lines(self, every_stage: bool, plan: Plan | None) -> list[Line]:
        """The list of work, numbered; with ``every_stage`` parts and packs are read too."""
        files = list(table_files(self.slices.folder, self.manifest))
        lines = [*slice_lines(self.manifest)]
        if self.dataset is not None:
            lines += part_lines(self.dataset, self.raw, plan)
            files += removed_files(self.root, self.dataset)
            files += stage_files(self.root, self.dataset) if every_stage else ()
        if self.parent is not None:
            files += table_files(self.parent.folder, self.parent.manifest, EARLIER)
        if every_stage:
            files += [*kept_markers(normalized_stage(self.root)), *kept_markers(raw_stage(self.root))]
        lines += file_lines(files)
        return [line | {"line": number} for number, line in enumerate(lines)]


def _find_parent(root: Place, fingerprint: str | None) -> ParentSlices | None:
    for stage in finished_slices(root) if fingerprint is not None else ():
        if stage.fingerprint() == fingerprint:
            return ParentSlices(stage.folder, _require_shape(read_manifest(stage), stage), fingerprint)
    return None


def _require_shape(marker: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """The marker. Raises DataError if it has not the fields, of the types, of its JSON Schema."""
    package = "slices" if stage.marker_name == MANIFEST_FILE else stage.folder.name
    schema = Path(__file__).parents[1] / package / "schemas" / stage.marker_name
    if fault := schema_fault(marker, json.loads(schema.read_text())):
        raise DataError(f"{stage.marker} was edited or damaged: {fault}; put the original back")
    return marker

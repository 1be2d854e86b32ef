"""The set of slices that is verified, with the markers of all that it was made from."""

import json
import re
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
from etl.stages.marker import Generation
from etl.stages.stage import Stage, require
from etl.storage.place import Place
from etl.verify.findings import DATASET, EARLIER, MANIFEST_FILE, RAW_DATASET, Finding, marker_fault
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

_NAME = re.compile(r"pack-[0-9]{5,}(\.[0-9]+)?")  # of a pack or a part


@dataclass(frozen=True)
class Target:
    """Finished slices, and the generations of ``normalized`` and ``raw`` that they were made from.

    Those are None if they are gone, and so is ``parent``, the slices whose splits were kept. ``damaged`` are findings
    about generations that are None because their table of parts or packs cannot be read.
    """

    root: Place
    slices: Stage
    manifest: dict[str, Any]
    dataset: Generation | None
    raw: Generation | None
    parent: ParentSlices | None
    damaged: tuple[Finding, ...] = ()

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
        damaged = list[Finding]()
        dataset = _find_generation(normalized_stage(root), manifest["input"], DATASET, damaged)
        if dataset is not None:
            image_of(dataset.marker)  # a configuration that normalize takes
        raw = _find_generation(raw_stage(root), dataset.marker["input"], RAW_DATASET, damaged) if dataset else None
        parent = _find_parent(root, manifest["config"]["splits_from"])
        return cls(root, slices, manifest, dataset, raw, parent, tuple(damaged))

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
            "removed": dataset.marker["removed"] if dataset else None,
            "group_by": config["group_by"],
            "classes": self.manifest["classes"],
            "image": self.manifest["image"],
            "normalized_image": image_of(dataset.marker) if dataset else None,
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


def _find_generation(stage: Stage, fingerprint: str, name: str, damaged: list[Finding]) -> Generation | None:
    """The generation with this fingerprint; None if there is none, or, with a finding, if it is damaged."""
    found = stage.find_generation(fingerprint)
    if found is None:
        return None
    try:
        _require_shape(found.marker, stage)
        for entry in found.entries:
            for each in {"part", "name", "pack"} & set(entry):
                require(_NAME.fullmatch(entry[each]) is not None, f"{entry[each]!r} is not the name of a pack or part")
    except DataError as error:
        damaged.append(marker_fault(str(error), name))
        return None
    return found


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

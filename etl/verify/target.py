"""The set of slices that is verified, with its markers."""

import json
from dataclasses import dataclass
from typing import Any

from etl.errors import DataError
from etl.partition.config import SOURCE_SPLIT
from etl.slices.manifest import DEPARTED, read_manifest, slices_of
from etl.stages.layout import normalized_stage, slices_stage
from etl.stages.stage import Stage
from etl.storage.place import Place
from etl.verify.work_list import DEPARTED as DEPARTED_LINE
from etl.verify.work_list import (
    Line,
    file_lines,
    part_lines,
    removed_files,
    slice_lines,
    stage_files,
    table_files,
)


@dataclass(frozen=True)
class Target:
    """Finished slices, and the marker of the normalised images that they were made from; None where that is gone."""

    root: Place
    slices: Stage
    manifest: dict[str, Any]
    dataset: dict[str, Any] | None

    @classmethod
    def find(cls, root: Place, name: str) -> "Target":
        """The slices called ``name``.

        Raises UsageError where there are none of this version, DataError where their manifest is not as it was written.
        """
        slices = slices_stage(root, name)
        if slices.marker.exists():
            try:
                json.loads(slices.marker.read_bytes())
            except ValueError as error:
                raise DataError(f"{slices.marker} was edited or damaged: it is no JSON ({error})") from None
        manifest = read_manifest(slices)
        return cls(root, slices, manifest, normalized_stage(root).find_generation(manifest["input"]))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest."""
        return self.slices.fingerprint()

    @property
    def dropped(self) -> bool:
        """Whether duplicates were left out."""
        return bool(self.manifest["config"]["drop_duplicates"])

    @property
    def by_source(self) -> bool:
        """Whether each example is to be in the split that its source gave."""
        config = self.manifest["config"]
        return config["split"] == SOURCE_SPLIT and not config["splits_from"]

    @property
    def slice_names(self) -> list[str]:
        return [each["name"] for _, each in slices_of(self.manifest)]

    def slice_told(self, name: str) -> tuple[str, dict[str, Any]]:
        """The split of a slice, and its entry in the manifest."""
        return next((split, each) for split, each in slices_of(self.manifest) if each["name"] == name)

    def lines(self, every_stage: bool) -> list[Line]:
        """The list of work, numbered; with ``every_stage`` parts and packs are read too."""
        files = list(table_files(self.slices.folder, self.manifest))
        lines = list(slice_lines(self.manifest))
        if self.dataset is not None:
            lines += part_lines(self.dataset)
            files += removed_files(self.root, self.dataset)
            files += stage_files(self.root, self.dataset) if every_stage else ()
        if self.manifest["tables"][DEPARTED]["rows"]:
            lines.append({"kind": DEPARTED_LINE})
        lines += file_lines(files)
        return [line | {"line": number} for number, line in enumerate(lines)]

"""Which slices a set of slices takes its splits from (``--splits-from``), and the lineage that this makes.

Slices that were made with ``--splits-from`` are on a lineage: their manifest has their number on it, from 1, and the
SHA-256 of each manifest before it, so that the lineage is known though older slices are pruned. Slices that were made
without are on none, unless others were made from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from typing import Any

from pyarrow.fs import FileType

from etl.errors import UsageError
from etl.slices.history import SplitHistory
from etl.slices.manifest import read_manifest
from etl.stages.layout import (
    is_folder_name,
    slices_below,
    slices_stage,
    slices_stage_in,
)
from etl.stages.stage import Stage
from etl.storage.place import Place, open_place

NEWEST = "newest"

FIRST = {"number": 1, "ancestors": list[str]()}


@dataclass(frozen=True)
class ParentSlices:
    """Finished slices: their folder, manifest, and its fingerprint."""

    folder: Place
    manifest: Mapping[str, Any]
    fingerprint: str

    @cached_property
    def history(self) -> SplitHistory:
        """All that they record of splits. Raises DataError if a table of theirs is not as it was written."""
        return SplitHistory.read(self.folder, self.manifest)

    @property
    def ancestors(self) -> list[str]:
        """The fingerprints of the slices that they descend from, the parent first."""
        lineage = self.manifest["lineage"]
        return list(lineage["ancestors"]) if lineage else []

    @property
    def next_lineage(self) -> dict[str, Any]:
        """The lineage of slices that are made from these."""
        number = self.manifest["lineage"]["number"] if self.manifest["lineage"] else 1
        return {"number": number + 1, "ancestors": [self.fingerprint, *self.ancestors]}


def lineage_of(asked: str | None, parent: ParentSlices | None) -> dict[str, Any] | None:
    """The manifest's facts about the lineage of slices for which --splits-from was ``asked``, and gave ``parent``."""
    if asked is None:
        return None
    return parent.next_lineage if parent else FIRST


def find_parent(root: Place, asked: str | None, own: Stage, overwrite: bool = False) -> ParentSlices | None:
    """The slices that ``asked`` names: a manifest, a folder of slices, a name below ``root``, or 'newest'.

    'newest' is the end of the root's lineage, ``own`` left aside; without a lineage the only finished slices; None
    if there are none. For ``own`` that is finished, and is not to be overwritten, it is what they were made from.

    Raises UsageError if there are none, or several ends, or ``own`` would be lost; DataError if their manifest is
    damaged.
    """
    if asked is None:
        return None
    if asked == NEWEST:
        return _newest(root, own, overwrite)
    found = _read(_named(root, asked))
    if found.folder == own.folder:
        raise UsageError(f"--splits-from {asked}: these are the slices to be made; give them another --name")
    return found


def _read(stage: Stage) -> ParentSlices:
    return ParentSlices(stage.folder, read_manifest(stage), stage.fingerprint())


def _named(root: Place, text: str) -> Stage:
    if is_folder_name(text) and slices_stage(root, text).folder.exists():
        return slices_stage(root, text)
    place = open_place(text)
    stage = slices_stage_in(place if place.info().type == FileType.Directory else place.parent)
    if not stage.marker.exists() or place.path not in (stage.folder.path, stage.marker.path):
        raise UsageError(
            f"--splits-from {text}: no slices there; give a manifest.json, its folder,"
            f" the name of slices of {root}, or '{NEWEST}'"
        )
    return stage


def _newest(root: Place, own: Stage, overwrite: bool) -> ParentSlices | None:
    finished = [_read(stage) for stage in finished_slices(root) if stage.folder != own.folder]
    there = _read(own) if own.marker.exists() else None
    if there is None or (not overwrite and there.manifest["lineage"] is None):
        return _end_of_lineage(finished)
    if not overwrite:
        splits_from = there.manifest["config"]["splits_from"]
        return next((each for each in finished if each.fingerprint == splits_from), None)
    found = _end_of_lineage(finished)
    if found is None:
        raise UsageError(
            f"--splits-from {NEWEST} with --overwrite: only {own.folder.name} has splits to keep, and it would be"
            " replaced; give another --name, or leave --splits-from out to assign all splits again"
        )
    return found


def lineage_ends(root: Place) -> list[Stage]:
    """The finished slices of a root that are on a lineage, and that no others were made from."""
    return [slices_stage_in(each.folder) for each in _ends(list(map(_read, finished_slices(root))))]


def _ends(finished: Sequence[ParentSlices]) -> list[ParentSlices]:
    ancestors = {fingerprint for each in finished for fingerprint in each.ancestors}
    return [each for each in finished if each.manifest["lineage"] and each.fingerprint not in ancestors]


def _end_of_lineage(finished: Sequence[ParentSlices]) -> ParentSlices | None:
    """The end of the lineage; without a lineage the only finished slices. Raises UsageError if there are several."""
    ends = _ends(finished)
    if len(candidates := ends or finished) > 1:
        names = " and ".join(each.folder.name for each in candidates)
        what = "several ends of the lineage" if ends else "several sets of slices, none made from another"
        raise UsageError(
            f"--splits-from {NEWEST}: {what}, {names}; name the one whose splits are to be kept,"
            " and remove the others or give them another ROOT"
        )
    return candidates[0] if candidates else None


def finished_slices(root: Place) -> Iterator[Stage]:
    """The finished slices of a root."""
    return (each for each in slices_below(root) if is_folder_name(each.folder.name) and each.marker.exists())


def finished_at(stage: Stage) -> tuple[str, str]:
    """When slices were finished, to sort by: as run.json says, else when their manifest was written."""
    written = stage.marker.info().mtime.astimezone(UTC)
    finished = stage.read_run().get("finished")
    return finished if isinstance(finished, str) else written.isoformat(timespec="milliseconds"), stage.folder.path

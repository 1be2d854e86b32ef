"""The places of a run's slices and of its own files."""

import re
from dataclasses import dataclass
from typing import Any

from etl.errors import UsageError
from etl.slices.history import finished_at, finished_slices
from etl.slices.manifest import Manifest, read_slices
from etl.stages.champion import CHAMPION
from etl.stages.layout import is_folder_name, slices_stage
from etl.stages.names import WORK_FOLDER
from etl.stages.stage import Stage
from etl.storage.place import Place, open_place

RESULT_FORMAT = "ringslice.run/1"


@dataclass(frozen=True)
class Dataset:
    """Finished slices: the root they belong to, their name, manifest and fingerprint."""

    root: str
    name: str
    manifest: dict[str, Any]
    fingerprint: str

    @property
    def stage(self) -> Stage:
        """The stage of these slices on their root."""
        return slices_stage(open_place(self.root), self.name)

    @property
    def folder(self) -> Place:
        """``ROOT/slices/NAME``."""
        return self.stage.folder


def find_dataset(place: str, name: str | None) -> Dataset:
    """The slices called ``name`` at ``place``, a root or a folder of roots; the newest finished ones without a name.

    Raises UsageError if there are none.
    """
    start = open_place(place)
    roots = [start, *(start / info.base_name for info in start.children() if not info.is_file)]
    stages = [(root, stage) for root in roots for stage in finished_slices(root) if name in (None, stage.folder.name)]
    if not stages:
        wanted = f"slices called {name!r}" if name else "finished slices"
        raise UsageError(
            f"no {wanted} under {start}; make some with: ringslice pipeline SOURCE {start} (or give --data ROOT)"
        )
    root, stage = max(stages, key=lambda found: finished_at(found[1]))
    found = read_slices(stage)
    return Dataset(root.uri, stage.folder.name, found.marker, found.fingerprint)


def slices_with(root: Place, fingerprint: str) -> Dataset | None:
    """The finished slices with this fingerprint; None if they are not below ``root``, any more or yet."""
    for stage in finished_slices(root):
        if stage.fingerprint() == fingerprint and (found := read_slices(stage)).fingerprint == fingerprint:
            return Dataset(root.uri, stage.folder.name, found.marker, fingerprint)
    return None


def choose_slices(dataset: Dataset, group: int | None) -> Manifest:
    """All slices; or, of the training split, those of one group of workers only.

    Raises UsageError if there are no training examples.
    """
    manifest = Manifest.from_json(dataset.manifest)
    manifest = manifest if group is None else manifest.of_group(group)
    if not sum(each.records for each in manifest.splits.get("train", [])):
        have = ", ".join(f"{split} {sum(each.records for each in own):,}" for split, own in manifest.splits.items())
        raise UsageError(
            f"{dataset.folder} has no training examples ({have}); give ringslice shard a --split with train="
        )
    return manifest


def choose_run(root: Place, name: str | None, resume: str | None, option: str = "--run") -> Place:
    """The folder of the run called ``name``; without a name the newest run's to ``resume``, else the next number's.

    A folder without anything finished (`has_begun`) is not a run yet. ``option`` is the one that gave the name.

    Raises UsageError if a run of that name is there and ``resume`` is not set, and for the name "champion".
    """
    if name == CHAMPION:
        raise UsageError(f"{option} {CHAMPION} is the name of the run that was promoted; give another name")
    if name is not None and (not is_folder_name(name) or name.startswith("-")):  # as an argument, -m is an option
        raise UsageError(f"{option} {name!r} is not a plain folder name; give something like 'first-try'")
    runs = root / "runs"
    if name is not None:
        if not resume and has_begun(runs / name):
            raise UsageError(f"{runs / name} already exists; give --resume to continue it, or another --run")
        return runs / name
    names = [info.base_name for info in runs.children() if not info.is_file]
    numbers = sorted((int(each[4:]) for each in names if re.fullmatch("run-[0-9]+", each)), reverse=True)
    newest = next((number for number in numbers if has_begun(_numbered(runs, number))), None) if resume else None
    return _numbered(runs, max(numbers, default=0) + 1 if newest is None else newest)


def _numbered(runs: Place, number: int) -> Place:
    return runs / f"run-{number:04d}"


def has_begun(run: Place) -> bool:
    """True if something of the run is finished; a trainer that is about to begin has a folder for its work only."""
    return any(info.base_name != WORK_FOLDER for info in run.children())

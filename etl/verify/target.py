"""The set of slices that is verified, with the markers of all that it was made from, and the list of work.

A line of work has all that its task needs, so that a task reads no manifest.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from etl.errors import DataError
from etl.normalized.parts import pack_of
from etl.partition.config import ShardConfig
from etl.slices.history import ParentSlices, finished_slices, removed_keys
from etl.slices.manifest import image_of, located_slices, slices_of
from etl.slices.plan import Plan, plan_slices
from etl.stages.layout import normalized_stage, raw_stage, slices_stage
from etl.stages.marker import FINGERPRINT, TABLES_FOLDER, Generation
from etl.stages.names import GENERATIONS_FOLDER
from etl.stages.stage import Stage, require
from etl.storage.place import Place
from etl.verify.findings import DATASET, RAW_DATASET, Finding, What, marker_fault

Line = dict[str, Any]

SLICES, PARTS, FILES = "slices", "parts", "files"  # kinds of lines, and of their items
# What makes a line long enough; a cluster's task may get several.
LINE_BYTES = 64 << 20
LINE_IMAGES = 100_000
LINE_ITEMS = 256
ROW_BYTES = 128  # about, of a table

_NAME = re.compile(r"pack-[0-9]{5,}(\.[0-9]+)?")  # of a pack or a part


@dataclass(frozen=True)
class Target:
    """Finished slices, the ``fingerprint`` of their manifest, and the generations of ``normalized`` and ``raw`` that
    they were made from.

    Those are None if they are gone, and so is ``parent``, the slices whose splits were kept. ``damaged`` are findings
    about generations that are None because their table of parts or packs cannot be read.
    """

    root: Place
    slices: Stage
    fingerprint: str
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
        found = _read_slices(slices)
        manifest = found.marker
        damaged = list[Finding]()
        dataset = _find_generation(normalized_stage(root), manifest["input"], DATASET, damaged)
        if dataset is not None:
            image_of(dataset.marker)  # a configuration that normalize takes
        raw = _find_generation(raw_stage(root), dataset.marker["input"], RAW_DATASET, damaged) if dataset else None
        parent = _find_parent(root, manifest["config"]["splits_from"])
        return cls(root, slices, found.fingerprint, manifest, dataset, raw, parent, tuple(damaged))

    def require_unchanged(self) -> None:
        """Raise EnvironmentFailure if something that is compared with the slices was removed or replaced meanwhile."""
        self.slices.require_generation(self.fingerprint)
        for stage, used in ((normalized_stage(self.root), self.dataset), (raw_stage(self.root), self.raw)):
            if used is not None:
                stage.require_generation(used.fingerprint)
        if self.parent is not None:
            self.parent.stage.require_generation(self.parent.fingerprint)

    @property
    def slice_names(self) -> list[str]:
        """The names of all slices, numbered through."""
        return [each["name"] for _, each in slices_of(self.manifest)]

    def find_slice(self, name: str) -> tuple[str, dict[str, Any]]:
        """The split of a slice, and its entry in the manifest."""
        return next((split, each) for split, each in slices_of(self.manifest) if each["name"] == name)

    @property
    def has_plan(self) -> bool:
        """True if what the plan was made from is there: the normalised images, and slices whose splits were kept."""
        has_parent = self.parent is not None or self.manifest["config"]["splits_from"] is None
        return self.dataset is not None and has_parent

    def plan_again(self) -> Plan:
        """The plan that these slices were made by.

        Raises DataError if it does not come out as it was: images or earlier slices are damaged or gone.
        """
        if not self.has_plan:
            raise DataError("the normalised images, or the slices whose splits were kept, are not there")
        assert self.dataset is not None
        recorded = self.manifest["config"]
        config = ShardConfig(**recorded)
        # perhaps more than were given, by those that were removed before
        removed = removed_keys(self.slices.folder) if config.removed_keys else None
        values = config.option_values() | {"slice_size": None}  # there are as many slices as recorded
        plan = plan_slices(self.root, values, self.dataset, self.parent, removed)
        if vars(plan.config) | {"removed_keys": None} != recorded | {"removed_keys": None}:
            raise DataError(f"a new plan is not the one of {self.slices.marker}")
        return plan

    def job(self, plan: Plan | None, assignments: Place | None, every_stage: bool) -> dict[str, Any]:
        """What tasks need to know: also of the new ``plan``, if there is one, and where its assignments are."""
        dataset = self.dataset
        return {
            "root": self.root.uri,
            "folder": self.slices.folder.uri,
            "every_stage": every_stage,
            "removed": dataset.marker["removed"] if dataset else None,
            "group_by": self.manifest["config"]["group_by"],
            "classes": self.manifest["classes"],
            "image": self.manifest["image"],
            "normalized_image": image_of(dataset.marker) if dataset else None,
            "seed": self.manifest["config"]["seed"],
            "plan": plan.slice_plan.to_json() if plan else None,
            "assignments": assignments.uri if assignments else None,
        }

    def lines(self, every_stage: bool, plan: Plan | None) -> list[Line]:
        """The list of work, numbered: runs of slices, of parts, and of files that are only hashed.

        With ``every_stage`` the records of parts, their rejects and their packs are read too, and earlier markers.
        """
        files = [_file(What.TABLE, self.slices.folder, each) for each in self.manifest["tables"].values()]
        parts = _parts(self.dataset, self.raw, plan, every_stage) if self.dataset else ()
        if self.dataset is not None and (removed := self.dataset.marker["removed"]):
            files.append(_file(What.REMOVED, self.root / "raw", removed))
        if self.parent is not None:
            tables = self.parent.marker["tables"].values()
            files += (_file(What.PARENT, self.parent.folder, each) for each in tables)
        if every_stage:
            files += [*_earlier_markers(normalized_stage(self.root)), *_earlier_markers(raw_stage(self.root))]
            files += _files_in_place(self.dataset) if self.dataset else ()
        kinds = ((SLICES, _slices(self.manifest)), (PARTS, parts), (FILES, files))
        runs = ((kind, run) for kind, items in kinds for run in _runs(items))
        return [{"kind": kind, "items": run, "line": number} for number, (kind, run) in enumerate(runs)]


def _find_generation(stage: Stage, fingerprint: str, name: str, damaged: list[Finding]) -> Generation | None:
    """The generation with this fingerprint; None if there is none, or, with a finding, if it is damaged."""
    try:
        found = stage.find_generation(fingerprint)
        if found is None:
            return None
        for column in {"part", "name", "pack"}.intersection(found.entries.schema.names):
            for each in found.entries.column(column):
                is_name = each is None or _NAME.fullmatch(each) is not None
                require(is_name, f"{each!r} is not the name of a pack or part")
    except DataError as error:
        damaged.append(marker_fault(str(error), name))
        return None
    return found


def _find_parent(root: Place, fingerprint: str | None) -> ParentSlices | None:
    for stage in finished_slices(root) if fingerprint is not None else ():
        with suppress(FileNotFoundError):  # it is removed meanwhile
            if stage.fingerprint() == fingerprint:
                return _read_slices(stage)
    return None


def _read_slices(stage: Stage) -> ParentSlices:
    found = ParentSlices.read(stage)
    stage.require_shape(found.marker, stage.marker)
    return found


def _slices(manifest: Mapping[str, Any]) -> Iterator[Line]:
    """The slices, each with its number and its first rows of the tables of examples and of blocks."""
    kept = ("name", "records", "blocks", "bytes", "sha256")
    for number, (split, each, row, block) in enumerate(located_slices(manifest)):
        yield {"number": number, "split": split, "row": row, "block": block, **{name: each[name] for name in kept}}


def _parts(dataset: Generation, raw: Generation | None, plan: Plan | None, every_stage: bool) -> Iterator[Line]:
    """The parts of a normalised generation: what the generations record of each and of its pack, and its line of the
    ``plan``, None if not known; and about how many bytes are read besides its rows.
    """
    packs = {pack["name"]: pack for pack in raw.entries} if raw else {}
    for each, planned in zip(dataset.entries, plan or repeat(None), strict=False):
        size = 2 * each["bytes"] if every_stage else 0
        pack = packs.get(pack_of(each))
        yield {"entry": each, "pack": pack, "plan": planned, "bytes": size, "images": each["input"]}


def _file(what: str, folder: Place, table: Mapping[str, Any]) -> Line:
    """A table that a marker in ``folder`` names; a finding about it says ``what`` it is."""
    place = folder / table["file"]
    size = table["rows"] * ROW_BYTES
    return {"what": what, "name": table["file"], "uri": place.uri, "sha256": table["sha256"], "bytes": size}


def _files_in_place(dataset: Generation) -> Iterable[Line]:
    """The files of the source that are packs where they lie, each once, however many packs it is."""
    files = dict[tuple[str, str], Line]()  # of one file two, if two of its parts differ about its SHA-256
    for part in dataset.entries:
        if uri := part.get("file"):
            line = {"what": What.PACK, "name": uri, "uri": uri, "sha256": part["pack_sha256"], "bytes": 0}
            files.setdefault((uri, part["pack_sha256"]), line)["bytes"] += part["bytes"]
    return files.values()


def _earlier_markers(stage: Stage) -> Iterator[Line]:
    """The markers of earlier generations of a stage, and all tables of packs or parts: named by their SHA-256."""
    for below in (GENERATIONS_FOLDER, TABLES_FOLDER):
        for info in (stage.folder / below).children():
            name, sha256 = f"{stage.folder.name}/{below}/{info.base_name}", info.base_name.partition(".")[0]
            if not (info.is_file and FINGERPRINT.fullmatch(sha256)):  # of a person
                continue
            uri = (stage.folder / below / info.base_name).uri
            yield {"what": What.MANIFEST, "name": name, "uri": uri, "sha256": sha256, "bytes": info.size}


def _runs(items: Iterable[Line]) -> Iterator[list[Line]]:
    """``items`` in runs that each make up a line or somewhat more, by the bytes and images of each."""
    run, filled = list[Line](), 0.0
    for item in items:
        run.append(item)
        filled += item["bytes"] / LINE_BYTES + item.get("images", 0) / LINE_IMAGES + 1 / LINE_ITEMS
        if filled >= 1:
            yield run
            run, filled = [], 0.0
    if run:
        yield run

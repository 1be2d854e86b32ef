"""The list of work of a verification: lines for runs of slices, for runs of parts, and for files that are only hashed.

A line holds all that its task needs to know, so that a task reads no manifest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, TypeVar

from etl.normalized.parts import pack_of, records_place, rejects_places
from etl.raw.packs import pack_place
from etl.slices.manifest import slices_of
from etl.slices.plan import Plan
from etl.stages.entries import TABLES_FOLDER
from etl.stages.marker import Generation
from etl.stages.names import GENERATIONS_FOLDER
from etl.stages.stage import Stage
from etl.storage.place import Place
from etl.verify.findings import MANIFEST, PACK, PART, REJECTS, REMOVED, TABLE

Line = dict[str, Any]
Item = TypeVar("Item")

SLICES, PARTS, FILES = "slices", "parts", "files"  # kinds of lines
# What makes a line long enough; a cluster's task may get several.
LINE_BYTES = 64 << 20
LINE_ROWS = 100_000
LINE_THINGS = 256
SMALL_FILE_BYTES = 1 << 20  # about, of a list


def slice_lines(manifest: Mapping[str, Any]) -> Iterator[Line]:
    """Runs of consecutive slices, with the numbers of their first slice, row of examples and row of blocks."""
    slices = [each | {"split": split} for split, each in slices_of(manifest)]
    number = row = block = 0
    for run in _runs(slices, lambda each: each["bytes"] / LINE_BYTES):
        kept = [
            {name: each[name] for name in ("split", "name", "records", "blocks", "bytes", "sha256")} for each in run
        ]
        yield {"kind": SLICES, "number": number, "row": row, "block": block, "slices": kept}
        number += len(run)
        row += sum(each["records"] for each in run)
        block += sum(each["blocks"] for each in run)


def part_lines(dataset: Generation, raw: Generation | None, plan: Plan | None) -> Iterator[Line]:
    """Runs of parts of a normalised generation.

    Of each: what the generations record of it and of its pack, and its line of the ``plan``; None if not known.
    """
    packs = {pack["name"]: pack for pack in raw.entries} if raw else {}
    plans = iter(plan) if plan else repeat(None)
    for run in _runs(dataset.entries, lambda part: part["input"] / LINE_ROWS):
        kept = [{"entry": each, "pack": packs.get(pack_of(each)), "plan": next(plans)} for each in run]
        yield {"kind": PARTS, "parts": kept}


def file_lines(files: Iterable[Line]) -> Iterator[Line]:
    """Runs of files to hash; each has ``what``, ``name``, ``uri``, ``sha256`` and about its ``bytes``."""
    for run in _runs(files, lambda each: each["bytes"] / LINE_BYTES):
        yield {"kind": FILES, "files": run}


def table_files(folder: Place, manifest: Mapping[str, Any], what: str = TABLE) -> Iterator[Line]:
    """The tables beside a manifest; a finding about one says ``what`` it is."""
    for entry in manifest["tables"].values():
        yield _file(what, entry["file"], folder / entry["file"], entry["sha256"], entry["rows"] * 128)


def kept_markers(stage: Stage) -> Iterator[Line]:
    """The markers of earlier generations of a stage, and all tables of packs or parts: named by their SHA-256."""
    for below in (GENERATIONS_FOLDER, TABLES_FOLDER):
        for info in (stage.folder / below).children():
            name, sha256 = f"{stage.folder.name}/{below}/{info.base_name}", info.base_name.partition(".")[0]
            yield _file(MANIFEST, name, stage.folder / below / info.base_name, sha256, info.size)


def removed_files(root: Place, dataset: Generation) -> Iterator[Line]:
    """The table of removed images that a normalised generation names, if it does."""
    if entry := dataset.marker["removed"]:
        yield _file(REMOVED, entry["file"], root / "raw" / entry["file"], entry["sha256"], entry["rows"] * 128)


def stage_files(root: Place, dataset: Generation) -> Iterator[Line]:
    """The large files that a normalised generation stands on: records and rejects of parts, and their packs.

    Rows and lists are read with the parts.
    """
    for part in dataset.entries:
        name, pack = part["part"], pack_of(part)
        yield _file(PART, name, records_place(root / "normalized", name), part["sha256"], part["bytes"])
        if "sha256" in part["rejects"]:
            tar, _ = rejects_places(root / "normalized", name)
            yield _file(REJECTS, name, tar, part["rejects"]["sha256"], SMALL_FILE_BYTES)
        packed = pack_place(root / "raw", pack, part.get("file"))
        yield _file(PACK, pack, packed, part["pack_sha256"], part["bytes"])


def _file(what: str, name: str, place: Place, sha256: str, size_bytes: int) -> Line:
    return {"what": what, "name": name, "uri": place.uri, "sha256": sha256, "bytes": size_bytes}


def _runs(items: Iterable[Item], share: Callable[[Item], float]) -> Iterator[list[Item]]:
    """``items`` in runs that each make up a line or somewhat more, by the ``share`` of a line that an item is."""
    run, filled = list[Item](), 0.0
    for item in items:
        run.append(item)
        filled += share(item) + 1 / LINE_THINGS
        if filled >= 1:
            yield run
            run, filled = [], 0.0
    if run:
        yield run

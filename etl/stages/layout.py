"""Where stages lie below ROOT, the format versions of their markers, and the files that these name; and where a command
may put a file that a person names: a page, a picture."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyarrow import fs

from etl.errors import UsageError
from etl.formats import schemas
from etl.stages.marker import Entry, EntryTable
from etl.stages.names import ERASED_FOLDER, STAGE_FOLDERS, VERIFIED_FOLDER
from etl.stages.stage import Stage
from etl.storage.place import Place

RAW_FORMAT = "ringslice.raw/4"
NORMALIZED_FORMAT = "ringslice.normalized/4"
SLICES_FORMAT = "ringslice.slices/3"
VERIFICATION_FORMAT = "ringslice.verification/1"
ERASED_FORMAT = "ringslice.erased/1"

MAX_NAME_BYTES = 200  # of slices and runs

_PACKAGES = Path(__file__).parents[1]  # that contain the schemas of their markers


def is_root(place: Place) -> bool:
    """True if a stage, or a run, has left anything below ``place``."""
    return any((place / folder).exists() for folder in STAGE_FOLDERS)


def require_root(place: Place) -> None:
    """Raise UsageError unless ``place`` is the root of a dataset."""
    if not is_root(place):
        raise UsageError(f"{place} is not the root of a dataset (no raw, no slices); give ROOT")


def folders(place: Place) -> list[str]:
    """The names of the folders in ``place``, sorted."""
    return [info.base_name for info in place.children() if not info.is_file]


def _files_of_pack(pack: Entry) -> Iterator[str]:
    yield f"packs/{pack['name']}.parquet"
    if "file" not in pack:
        yield f"packs/{pack['name']}.tar"


def _files_of_part(part: Entry) -> Iterator[str]:
    yield from (f"parts/{part['part']}.tfrecord", f"parts/{part['part']}.parquet")
    if "sha256" in part["rejects"]:
        yield from (f"rejects/{part['part']}.tar", f"rejects/{part['part']}.parquet")


PACKS = EntryTable("packs", schemas.PACKS, _files_of_pack)
PARTS = EntryTable("parts", schemas.PARTS, _files_of_part)


def raw_stage(root: Place) -> Stage:
    """The stage ``ingest``: ``ROOT/raw``."""
    place, schema, own = root / "raw", _PACKAGES / "raw/schemas/dataset.json", ("packs", "removed")
    return Stage("ingest", place, "dataset.json", RAW_FORMAT, file_folders=own, entries=PACKS, schema=schema)


def normalized_stage(root: Place) -> Stage:
    """The stage ``normalize``: ``ROOT/normalized``."""
    hint = "use another place, where only limits are looser --retry-rejects"
    place = root / "normalized"
    schema = _PACKAGES / "normalized/schemas/dataset.json"
    return Stage("normalize", place, "dataset.json", NORMALIZED_FORMAT, hint, ("parts", "rejects"), PARTS, schema)


def slices_stage(root: Place, name: str) -> Stage:
    """The slices called ``name``. Raises UsageError for a name that is not a plain file name."""
    if not is_folder_name(name):
        raise UsageError(
            f"--name {name!r} is not a plain folder name of up to {MAX_NAME_BYTES} bytes; give something like 'default'"
        )
    return slices_stage_in(root / "slices" / name)


def slices_stage_in(folder: Place) -> Stage:
    """The slices in this folder."""
    hint = "give another --name (with --splits-from newest every image keeps its split)"
    return Stage(
        "shard", folder, "manifest.json", SLICES_FORMAT, hint, schema=_PACKAGES / "slices/schemas/manifest.json"
    )


def slices_below(root: Place) -> Iterator[Stage]:
    """A stage for each folder below ``ROOT/slices``, by name; it may be unfinished."""
    for name in folders(root / "slices"):
        yield slices_stage_in(root / "slices" / name)


def verification_stage(root: Place, name: str) -> Stage:
    """What ``verify`` found of the slices called ``name``."""
    return verification_stage_in(root / VERIFIED_FOLDER / name)


def verification_stage_in(folder: Place) -> Stage:
    """A verification in this folder."""
    return Stage("verify", folder, "verification.json", VERIFICATION_FORMAT)


def erasure_stage(root: Place) -> Stage:
    """What was erased below ``root``; it is never finished, and is leased while `ringslice erase` is at work."""
    return Stage("erase", root / ERASED_FOLDER, "images.parquet", ERASED_FORMAT)


def is_folder_name(name: str) -> bool:
    """True if people may call slices or runs so: one folder, neither hidden nor one of our own, and not too long for
    the files that are named after it.
    """
    is_plain = name.isprintable() and not name.startswith((".", "_")) and "/" not in name
    return is_plain and 0 < len(os.fsencode(name)) <= MAX_NAME_BYTES


def folders_of(root: Place) -> list[Place]:
    """The folders of a root that have files of stages and of runs, where no other files go."""
    return [root / name for name in (*STAGE_FOLDERS, ERASED_FOLDER, "models")]


def check_target(file: Place, option: str, kept: Iterable[Place]) -> Place:
    """``file``, given by this ``option``, with symbolic links followed.

    Raises UsageError if no file can be written there, or it lies below one of the folders that are ``kept`` for others.
    """
    target, found = file.resolved(), file.info().type
    if found == fs.FileType.Directory:
        raise UsageError(f"{file} is a folder; give the name of a file with {option}")
    if found == fs.FileType.Unknown:  # a pipe or a device, in whose place the file would be put
        raise UsageError(f"{file} is not a regular file; give another with {option}")
    if target.parent.info().type != fs.FileType.Directory:
        raise UsageError(f"{target.parent}: no such folder; make it, or give another place with {option}")
    refuse_within(file, option, kept)
    return target


def refuse_within(place: Place, option: str, kept: Iterable[Place]) -> None:
    """Raise UsageError if ``place``, given by this ``option``, lies below one of the folders ``kept`` for others."""
    for folder in kept:
        if place.path_within(folder) is not None:
            raise UsageError(
                f"{place} lies among the files of a dataset; give a place outside of {folder} with {option}"
            )

"""Where stages lie below ROOT, and the format versions of their markers."""

from etl.errors import UsageError
from etl.stages.marker import PLAN_FILE as PLAN_FILE
from etl.stages.marker import RUN_FILE as RUN_FILE
from etl.stages.marker import WORK_FOLDER as WORK_FOLDER
from etl.stages.run_record import Run as Run
from etl.stages.stage import Stage
from etl.storage.place import Place

RAW_FORMAT = "ringslice.raw/3"

NORMALIZED_FORMAT = "ringslice.normalized/3"

SLICES_FORMAT = "ringslice.slices/3"

VERIFICATION_FORMAT = "ringslice.verification/1"

ERASED_FORMAT = "ringslice.erased/1"

VERIFIED_FOLDER = "verified"

ERASED_FOLDER = "erased"

OLD_SLICES_FOLDER = "old"  # in the work folder of an erasure: slices that are being replaced

STAGE_FOLDERS = ("raw", "normalized", "slices", VERIFIED_FOLDER, "runs")


def is_root(place: Place) -> bool:
    """Whether a stage, or a run, has left anything below ``place``."""
    return any((place / folder).exists() for folder in STAGE_FOLDERS)


def raw_stage(root: Place) -> Stage:
    return Stage("ingest", root / "raw", "dataset.json", RAW_FORMAT)


def normalized_stage(root: Place) -> Stage:
    elsewhere = "use another place, where only limits are looser --retry-rejects"
    return Stage("normalize", root / "normalized", "dataset.json", NORMALIZED_FORMAT, elsewhere)


def slices_stage(root: Place, name: str) -> Stage:
    """The slices called ``name``. Raises UsageError for a name that is no plain file name."""
    if not is_folder_name(name):
        raise UsageError(f"--name {name!r} is no plain folder name; give something like 'default' or 'eight-workers'")
    return slices_stage_in(root / "slices" / name)


def slices_stage_in(folder: Place) -> Stage:
    """The slices in this folder."""
    elsewhere = "give another --name (with --splits-from newest every image keeps its split)"
    return Stage("shard", folder, "manifest.json", SLICES_FORMAT, elsewhere)


def verification_stage(root: Place, name: str) -> Stage:
    """What ``verify`` found of the slices called ``name``."""
    return verification_stage_in(root / VERIFIED_FOLDER / name)


def verification_stage_in(folder: Place) -> Stage:
    """A verification in this folder."""
    return Stage("verify", folder, "verification.json", VERIFICATION_FORMAT)


def erasure_stage(root: Place) -> Stage:
    """What was erased below ``root``; it is never finished, and is claimed while `ringslice erase` is at work."""
    return Stage("erase", root / ERASED_FOLDER, "images.parquet", ERASED_FORMAT)


def remade_stage(root: Place, name: str) -> Stage:
    """The slices that are to take the place of those called ``name``, while they are made without erased images."""
    return slices_stage_in(erasure_stage(root).work / "slices" / name)


def is_folder_name(name: str) -> bool:
    """Whether people may call slices or runs so: one folder, neither hidden nor one of our own."""
    return bool(name) and not name.startswith((".", "_")) and "/" not in name

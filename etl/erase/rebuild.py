"""Slices that are rebuilt without certain images, and replace those that have them.

The new ones are made below ``ROOT/erased/_work``, by the job `mapreduce.shard`. When they are finished, the old folder
is moved out of its place, the new one into it, and the old one is deleted. After a kill in between, finished slices are
in one place or the other, and `finish_moves` does the rest.
"""

from collections.abc import Callable

from etl.errors import EnvironmentFailure
from etl.slices.key_list import list_sha256
from etl.slices.manifest import read_manifest
from etl.stages.layout import (
    OLD_SLICES_FOLDER,
    erasure_stage,
    folders,
    normalized_stage,
    rebuilt_stage,
    slices_stage,
    verification_stage,
)
from etl.stages.stage import Stage
from etl.storage.place import Place


def finish_moves(root: Place) -> None:
    """Finish what an erasure that was killed had begun to move."""
    for name in folders(_old(root)):
        _put_in_place(root, name)


def rebuild_slices(root: Place, name: str, keys: list[str], make: Callable[[str], bool]) -> bool:
    """Rebuild the slices called ``name`` without ``keys``, and replace the old ones.

    ``make`` makes `rebuilt_stage`; if it returns False because that cannot be done, the old ones stay, and False is
    returned. Reports on the old ones are removed. Raises BusyError if another run is at work on them.
    """
    stage, rebuilt = slices_stage(root, name), rebuilt_stage(root, name)
    with stage.lease():
        if rebuilt.marker.exists() and not _is_up_to_date(rebuilt, stage, root, keys):
            rebuilt.folder.delete()
        if not make(name):
            return False
        verification = verification_stage(root, name)
        if verification.folder.exists():
            with verification.lease() as run:
                run.delete([verification.marker])
                verification.folder.delete()
        move_folder(stage.folder, _old(root).make_folder() / name)
        _put_in_place(root, name)
    return True


def _is_up_to_date(rebuilt: Stage, stage: Stage, root: Place, keys: list[str]) -> bool:
    """Whether the rebuilt slices are those that would be made now."""
    manifest = read_manifest(rebuilt)
    config = manifest["config"]
    made_of = (manifest["input"], config["splits_from"], config["removed_keys"])
    return made_of == (normalized_stage(root).fingerprint(), stage.fingerprint(), list_sha256(keys))


def _old(root: Place) -> Place:
    return erasure_stage(root).work / OLD_SLICES_FOLDER


def _put_in_place(root: Place, name: str) -> None:
    stage, rebuilt, old = slices_stage(root, name), rebuilt_stage(root, name), _old(root) / name
    if not stage.folder.exists():
        if not rebuilt.marker.exists():  # a user removed them
            move_folder(old, stage.folder)
            return
        move_folder(rebuilt.folder, stage.folder)
    old.delete()


def move_folder(folder: Place, target: Place) -> None:
    """Give a folder a free name, in one step. Raises EnvironmentFailure if the name is taken."""
    if target.exists():
        raise EnvironmentFailure(f"{target} already exists: another run has begun; wait for it, and run again")
    folder.filesystem.replace(folder.path, target.path)

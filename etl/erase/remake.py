"""Slices that are made anew without certain images, and take the place of those that hold them.

The new ones are made below ``ROOT/erased/_work``, by the job `mapreduce.shard`. When they are finished, the old folder
is moved out of its place, the new one into it, and the old one is deleted: whoever is killed in between left finished
slices in one place or the other, and `finish_moves` does the rest.
"""

from collections.abc import Callable

from etl.errors import EnvironmentFailure
from etl.slices.key_list import list_sha256
from etl.slices.manifest import read_manifest
from etl.stages.layout import (
    OLD_SLICES_FOLDER,
    erasure_stage,
    normalized_stage,
    remade_stage,
    slices_stage,
    verification_stage,
)
from etl.stages.stage import Stage
from etl.storage.place import Place

MakeSlices = Callable[[str], bool]


def finish_moves(root: Place) -> None:
    """Finish what an erasure that was killed had begun to move."""
    old = erasure_stage(root).work / OLD_SLICES_FOLDER
    for info in old.children():
        _put_in_place(root, info.base_name)


def remake(root: Place, name: str, keys: list[str], make: MakeSlices) -> bool:
    """Have the slices called ``name`` made anew without ``keys``, and put in the place of the old ones.

    ``make`` makes `remade_stage`; where it says that this cannot be done, the old ones stay, and False is returned.
    Reports on the old ones are removed. Raises BusyError where another run is at work on them.
    """
    stage, remade = slices_stage(root, name), remade_stage(root, name)
    with stage.held():
        if remade.marker.exists() and not _is_made_for(stage, remade, root, keys):
            remade.folder.delete()
        if not make(name):
            return False
        verification = verification_stage(root, name)
        if verification.folder.exists():
            with verification.held():
                verification.delete_checked([verification.marker])
                verification.folder.delete()
        old = erasure_stage(root).work / OLD_SLICES_FOLDER
        old.make_folder()
        move_folder(stage.folder, old / name)
        _put_in_place(root, name)
    return True


def _is_made_for(stage: Stage, remade: Stage, root: Place, keys: list[str]) -> bool:
    """Whether finished slices are those that would be made now."""
    manifest = read_manifest(remade)
    config = manifest["config"]
    made_for = (manifest["input"], config["splits_from"], config["removed_keys"])
    return made_for == (normalized_stage(root).fingerprint(), stage.fingerprint(), list_sha256(keys))


def _put_in_place(root: Place, name: str) -> None:
    stage, remade = slices_stage(root, name), remade_stage(root, name)
    old = erasure_stage(root).work / OLD_SLICES_FOLDER / name
    if not stage.folder.exists():
        if not remade.marker.exists():  # somebody removed them
            move_folder(old, stage.folder)
            return
        move_folder(remade.folder, stage.folder)
    old.delete()


def move_folder(folder: Place, target: Place) -> None:
    """Give a folder a free name, in one step. Raises EnvironmentFailure where the name is taken."""
    if target.exists():
        raise EnvironmentFailure(f"{target} is there already: another run has begun; wait for it, and run again")
    folder.filesystem.replace(folder.path, target.path)

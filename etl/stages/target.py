"""Where a command may put a file that a person names: a page, a picture."""

from collections.abc import Iterable

from pyarrow import fs

from etl.errors import UsageError
from etl.stages.names import ERASED_FOLDER, STAGE_FOLDERS
from etl.storage.place import Place


def folders_of(root: Place) -> list[Place]:
    """The folders of a root that have files of stages and of runs, where no other files go."""
    return [root / name for name in (*STAGE_FOLDERS, ERASED_FOLDER, "models")]


def check_target(file: Place, option: str, folders: Iterable[Place]) -> Place:
    """``file``, given by this ``option``, with symbolic links followed.

    Raises UsageError if no file can be written there, or it lies below one of the ``folders``.
    """
    target, found = file.resolved(), file.info().type
    if found == fs.FileType.Directory:
        raise UsageError(f"{file} is a folder; give the name of a file with {option}")
    if found == fs.FileType.Unknown:  # a pipe or a device, in whose place the file would be put
        raise UsageError(f"{file} is not a regular file; give another with {option}")
    if target.parent.info().type != fs.FileType.Directory:
        raise UsageError(f"{target.parent}: no such folder; make it, or give another place with {option}")
    for folder in folders:
        if target.path_within(folder) is not None:
            raise UsageError(
                f"{file} lies among the files of a dataset; give a place outside of {folder} with {option}"
            )
    return target

"""Symbolic links in a source of local files: those that lead out of it, and those that double what is in it."""

import os
from collections.abc import Set

from etl.errors import UsageError
from etl.progress import log
from etl.sources.file_names import is_visible
from etl.storage.place import Place


class Links:
    """The links below the folder ``source``, which may itself be one. Hard links are files like others.

    Without ``are_followed`` one that leads out of it is refused: whoever can write to a source may not choose what else
    of this machine goes into a dataset.
    """

    def __init__(self, source: Place, are_followed: bool) -> None:
        self._source, self._are_followed = source, are_followed
        self._inside = _folder(source.real_path)
        self._real_folders: dict[str, str] = {}
        self._within = 0

    def follow(self, link: Place) -> bool:
        """Whether to follow a link that a listing has: not a hidden one. Raises UsageError where it leads out."""
        if not is_visible(link.path[len(self._source.path.rstrip("/")) + 1 :]):
            return False
        target = link.real_path
        self._within += self._is_inside(target)
        self._require_inside(target, str(link))
        return True

    def check_listed(self, file: Place, where: str) -> None:
        """Raise UsageError where a path that a list has goes from the folder of the list, and a link leads it out."""
        if file.filesystem.scheme != "file" or not file.path.startswith(_folder(self._source.path)):
            return
        folder = file.parent
        if folder.path not in self._real_folders:
            self._real_folders[folder.path] = folder.real_path
        is_link = os.path.islink(file.path)
        target = file.real_path if is_link else f"{_folder(self._real_folders[folder.path])}{file.name}"
        self._require_inside(target, f"{where}: {file}")

    def log(self) -> None:
        """Tell how many of the links that were followed lead to what is in the source, too."""
        if self._within:
            log(
                "ingest",
                f"links in {self._source} that lead to what is in it, too: {self._within}; their images come again",
            )

    def _is_inside(self, target: str) -> bool:
        return _folder(target).startswith(self._inside)

    def _require_inside(self, target: str, what: str) -> None:
        if not (self._are_followed or self._is_inside(target)):
            raise UsageError(
                f"{what} leads by a link to {target}, out of {self._source}; remove it, or give --follow-links to take"
                " what links lead to"
            )


def links_in(folder: Place) -> Set[str]:
    """The names of the symbolic links in a folder; HDFS has none."""
    if folder.filesystem.scheme != "file":
        return frozenset()
    with os.scandir(folder.path) as entries:
        return {entry.name for entry in entries if entry.is_symlink()}


def _folder(path: str) -> str:
    return f"{path.rstrip('/')}/"

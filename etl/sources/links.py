"""Symbolic links in a source of local files: those that lead out of it, and those that double what is in it."""

import os

from etl.errors import UsageError
from etl.progress import log
from etl.storage.place import Place


class Links:
    """The links below the folder ``source``, which may itself be one. Hard links are files like others.

    Unless ``are_followed``, a link that leads out of it is refused: whoever can write to a source may not choose what
    else of this machine goes into a dataset.
    """

    def __init__(self, source: Place, are_followed: bool) -> None:
        self._source, self._are_followed, self._within = source, are_followed, 0
        self._inside = _folder(source.real_path)
        self._real_folders: dict[str, str] = {}

    def check(self, link: Place) -> None:
        """Raise UsageError if a link leads out of the source, and count it if it does not."""
        self._within += self._require_inside(link.real_path, str(link))

    def check_listed(self, file: Place, where: str) -> None:
        """Raise UsageError if a path that a list has begins in the folder of the list, and a link leads it out."""
        if file.filesystem.scheme != "file" or not file.path.startswith(_folder(self._source.path)):
            return
        folder = file.parent
        if folder.path not in self._real_folders:
            self._real_folders[folder.path] = _folder(folder.real_path)
        is_link = os.path.islink(file.path)
        target = file.real_path if is_link else f"{self._real_folders[folder.path]}{file.name}"
        self._require_inside(target, f"{where}: {file}")

    def log(self) -> None:
        """Log how many of the links that were followed lead to what is in the source, too."""
        if self._within:
            log(
                "ingest",
                f"links in {self._source} that lead to what is in it, too: {self._within}; their images come again",
            )

    def _require_inside(self, target: str, what: str) -> bool:
        is_inside = _folder(target).startswith(self._inside)
        if not (self._are_followed or is_inside):
            raise UsageError(
                f"{what} leads by a link to {target}, out of {self._source}; remove it, or give --follow-links to take"
                " what links lead to"
            )
        return is_inside


def _folder(path: str) -> str:
    return f"{path.rstrip('/')}/"

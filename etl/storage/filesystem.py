"""What a filesystem offers beyond ``pyarrow.fs``: renames that are atomic and exclusive, and files that are new.

Publishing, leases and fencing depend on four promises, which one contract suite tests on local files and on HDFS:

- `Filesystem.open_new` makes a file in an existing folder, and never the folder;
- `Filesystem.rename_new` gives a file a free name in one step, and fails if the name is taken;
- `Filesystem.replace` gives a file a name, taken or free, in one step;
- each raises FileNotFoundError if the file's own folder was deleted meanwhile, whatever else happens at once.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import pyarrow
from pyarrow import fs

WRITE_BUFFER_BYTES = 1 << 20


class Filesystem(ABC):
    """A filesystem as this project uses it. Paths are absolute."""

    scheme: ClassVar[str]

    @property
    @abstractmethod
    def arrow(self) -> fs.FileSystem:
        """The same as a pyarrow filesystem."""

    @abstractmethod
    def uri(self, path: str) -> str:
        """The text that names ``path`` in any process."""

    @abstractmethod
    def open_new(self, path: str) -> pyarrow.NativeFile:
        """Open a file for writing in an existing folder.

        Raises FileExistsError if the name is taken, FileNotFoundError if there is no such folder.
        """

    @abstractmethod
    def sync(self, path: str) -> None:
        """Return when the bytes of a closed file survive a crash of its machine."""

    @abstractmethod
    def sync_folder(self, path: str) -> None:
        """Return when the names of a folder's files survive a crash."""

    def make_folder(self, path: str) -> None:
        """Make a folder, with those above it; it may exist. Its name survives a crash."""
        self.arrow.create_dir(path, recursive=True)

    @abstractmethod
    def rename_new(self, path: str, target: str) -> None:
        """Give the file ``path`` the name ``target``; raises FileExistsError if that is taken, and changes nothing.

        Raises FileNotFoundError if ``path`` does not exist.
        """

    @abstractmethod
    def replace(self, path: str, target: str) -> None:
        """Give the file ``path`` the name ``target``, in place of a file that has it. Raises FileNotFoundError.

        A folder needs a free name.
        """

    @abstractmethod
    def delete_empty(self, path: str) -> None:
        """Delete a folder if it is empty, in one step; it may be gone already."""

    @abstractmethod
    def touch(self, path: str) -> None:
        """Set a file's time of change to now. Raises FileNotFoundError."""

    def real_path(self, path: str) -> str:
        """The path with symbolic links followed, if the filesystem has them."""
        return path

    def links(self, folder: str) -> list[str]:
        """The names of symbolic links in a folder, sorted; a listing lacks those that lead to nothing."""
        del folder
        return []

    def explaining(self, path: str) -> AbstractContextManager[None]:
        """Within this context, failures at ``path`` are explained in one line with a remedy."""
        del path
        return nullcontext()

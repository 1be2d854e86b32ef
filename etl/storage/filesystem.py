"""What a filesystem offers beyond ``pyarrow.fs``: renames that are atomic and exclusive, and files that are new.

Publishing, claiming and fencing stand on four promises, the same for local files and for HDFS; one contract suite holds
all of them to it:

- `Filesystem.open_new` makes a file in a folder that is there, and never the folder;
- `Filesystem.rename_new` gives a file a name that is free, in one step, and fails where it is not;
- `Filesystem.replace` gives a file a name, taken or free, in one step;
- each fails with FileNotFoundError where the file's own folder was deleted meanwhile, whatever else happens at once.
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
        """Open a file for writing in a folder that is there.

        Raises FileExistsError where there is one of that name, FileNotFoundError where there is no such folder.
        """

    @abstractmethod
    def sync(self, path: str) -> None:
        """Return when a closed file's bytes outlast a crash of its machine."""

    @abstractmethod
    def sync_folder(self, path: str) -> None:
        """Return when the names of a folder's files outlast a crash."""

    def make_folder(self, path: str) -> None:
        """Make a folder, with those above it; it may be there. Its name outlasts a crash."""
        self.arrow.create_dir(path, recursive=True)

    @abstractmethod
    def rename_new(self, path: str, target: str) -> None:
        """Give the file ``path`` the name ``target``; raises FileExistsError where that is taken, and changes nothing.

        Raises FileNotFoundError where ``path`` is not there.
        """

    @abstractmethod
    def replace(self, path: str, target: str) -> None:
        """Give the file ``path`` the name ``target``, in place of a file that has it. Raises FileNotFoundError.

        A folder takes a name that is free.
        """

    @abstractmethod
    def delete_empty(self, path: str) -> None:
        """Delete a folder if nothing is in it, in one step; it may be gone already."""

    @abstractmethod
    def touch(self, path: str) -> None:
        """Set a file's time of change to now. Raises FileNotFoundError."""

    def real_path(self, path: str) -> str:
        """The path with symbolic links followed, where the filesystem has them."""
        return path

    def links(self, folder: str) -> list[str]:
        """The names of symbolic links in a folder, sorted; a listing lacks those that lead to nothing."""
        del folder
        return []

    def explaining(self, path: str) -> AbstractContextManager[None]:
        """Within this context, what goes wrong at ``path`` is told in words of ours."""
        del path
        return nullcontext()

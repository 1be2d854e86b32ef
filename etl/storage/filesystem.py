"""What a filesystem offers beyond ``pyarrow.fs``: renames that are atomic and exclusive, and files that are new.

Publishing, leases and fencing depend on four promises, which one contract suite tests on local files and on HDFS:

- `Filesystem.open_new` makes a file in an existing folder, and never the folder;
- `Filesystem.rename_new` gives a file a free name in one step, and fails if the name is taken;
- `Filesystem.replace` gives a file a name, taken or free, in one step;
- each raises FileNotFoundError if the file's own folder was deleted meanwhile, whatever else happens at once.

Local files are here, HDFS is in `etl.storage.hdfs`.
"""

import errno
import os
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import ClassVar

import pyarrow
from pyarrow import fs

from etl.errors import EnvironmentFailure

WRITE_BUFFER_BYTES = 1 << 20
_NO_FOLDER_SYNC = (errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


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

    def explain_errors(self, path: str) -> AbstractContextManager[None]:
        """Within this context, failures at ``path`` are explained in one line with a remedy."""
        del path
        return nullcontext()


class LocalFilesystem(Filesystem):
    """Files of this machine."""

    scheme = "file"
    arrow: fs.FileSystem = fs.LocalFileSystem()

    def uri(self, path: str) -> str:
        return path

    def open_new(self, path: str) -> pyarrow.NativeFile:
        """Make the file by O_EXCL, then open it."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        return self.arrow.open_output_stream(path, compression=None, buffer_size=WRITE_BUFFER_BYTES)

    def sync(self, path: str) -> None:
        """Sync by fsync."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(self, path: str) -> None:
        """Sync by fsync, if the folder may be opened and its storage can."""
        try:
            self.sync(path)
        except OSError as error:  # a folder that only its writers may list, and storage that knows no sync of folders
            if error.errno not in _NO_FOLDER_SYNC:
                raise

    def make_folder(self, path: str) -> None:
        """Make the folders that are missing, and sync the folder above each."""
        made, above = [], path
        while above != "/" and not os.path.lexists(above):
            above = os.path.dirname(above)
            made.append(above)
        self.arrow.create_dir(path, recursive=True)
        for each in made:
            self.sync_folder(each)

    def rename_new(self, path: str, target: str) -> None:
        """Link the file to its new name, which fails if that is taken, and unlink the old one."""
        try:
            os.link(path, target)
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise EnvironmentFailure(
                    f"{target} is on a filesystem without hard links; choose another place"
                ) from None
            raise
        with suppress(FileNotFoundError):
            os.unlink(path)

    def replace(self, path: str, target: str) -> None:
        """Rename as rename(2) does."""
        os.replace(path, target)

    def delete_empty(self, path: str) -> None:
        """Delete by rmdir(2)."""
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def touch(self, path: str) -> None:
        """Set the times by utime(2)."""
        os.utime(path)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def links(self, folder: str) -> list[str]:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_symlink())

"""Local files as a `Filesystem`."""

import errno
import os
from contextlib import suppress

import pyarrow
from pyarrow import fs

from etl.errors import EnvironmentFailure
from etl.storage.filesystem import WRITE_BUFFER_BYTES, Filesystem

_NO_FOLDER_SYNC = (errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class LocalFilesystem(Filesystem):
    """Files of this machine."""

    scheme = "file"

    def __init__(self) -> None:
        self._arrow = fs.LocalFileSystem()

    @property
    def arrow(self) -> fs.FileSystem:
        return self._arrow

    def uri(self, path: str) -> str:
        return path

    def open_new(self, path: str) -> pyarrow.NativeFile:
        """Make the file by O_EXCL, then open it."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        return self._arrow.open_output_stream(path, compression=None, buffer_size=WRITE_BUFFER_BYTES)

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
        self._arrow.create_dir(path, recursive=True)
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

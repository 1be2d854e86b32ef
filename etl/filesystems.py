"""What a filesystem offers beyond ``pyarrow.fs``: renames that are atomic and exclusive, and files that are new.

Publishing, claiming and fencing stand on four promises, the same for local files and for HDFS; one contract suite holds
all of them to it:

- `Filesystem.open_new` makes a file in a folder that is there, and never the folder;
- `Filesystem.rename_new` gives a file a name that is free, in one step, and fails where it is not;
- `Filesystem.replace` gives a file a name, taken or free, in one step;
- each fails with FileNotFoundError where the file's own folder was deleted meanwhile, whatever else happens at once.
"""

import errno
import os
import posixpath
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import ClassVar
from urllib.parse import unquote

import pyarrow
from pyarrow import fs

from etl.errors import EnvironmentFailure, UsageError
from etl.hdfs_settings import HdfsSettings

WRITE_BUFFER_BYTES = 1 << 20

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
        """Open a file for writing in a folder that is there.

        Raises FileExistsError where there is one of that name, FileNotFoundError where there is no such folder.
        """

    @abstractmethod
    def sync(self, path: str) -> None:
        """Return when a closed file's bytes outlast a crash of its machine."""

    @abstractmethod
    def rename_new(self, path: str, target: str) -> None:
        """Give the file ``path`` the name ``target``; raises FileExistsError where that is taken, and changes nothing.

        Raises FileNotFoundError where ``path`` is not there.
        """

    @abstractmethod
    def replace(self, path: str, target: str) -> None:
        """Give the file ``path`` the name ``target``, in place of a file that has it. Raises FileNotFoundError."""

    @abstractmethod
    def touch(self, path: str) -> None:
        """Set a file's time of change to now. Raises FileNotFoundError."""

    def real_path(self, path: str) -> str:
        """The path with symbolic links followed, where the filesystem has them."""
        return path

    def links_to_nothing(self, folder: str) -> list[str]:
        """The names of symbolic links in a folder that lead to nothing, which no listing has; where there are links."""
        del folder
        return []

    def explaining(self, path: str) -> AbstractContextManager[None]:
        """Within this context, what goes wrong at ``path`` is told in words of ours."""
        del path
        return nullcontext()


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
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        return self._arrow.open_output_stream(path, compression=None, buffer_size=WRITE_BUFFER_BYTES)

    def sync(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename_new(self, path: str, target: str) -> None:
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
        os.replace(path, target)

    def touch(self, path: str) -> None:
        os.utime(path)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def links_to_nothing(self, folder: str) -> list[str]:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_symlink() and not os.path.exists(entry.path))


_LOCAL = LocalFilesystem()
_OPENED: dict[tuple[object, ...], Filesystem] = {}


def locate(uri: str) -> tuple[Filesystem, str]:
    """The filesystem and the path that ``uri`` names; nothing is connected to before it is used.

    Within one process, the same address and settings give the same connection.

    Raises UsageError for a scheme that there is no filesystem for.
    """
    scheme, separator, rest = uri.partition("://")
    if not uri:
        raise UsageError("the place is empty; give a folder such as data/flowers or hdfs://namenode/datasets/flowers")
    if not separator:
        return _LOCAL, os.path.abspath(uri)
    authority, _, path = rest.partition("/")
    if scheme == "file" and authority in ("", "localhost"):
        return _LOCAL, os.path.abspath(unquote(f"/{path}"))
    if scheme == "hdfs":
        return _hdfs(authority), posixpath.normpath(f"/{path}")
    raise UsageError(
        f"cannot open {uri!r}: give a local path, file:///absolute/path or hdfs://namenode:port/absolute/path"
    )


def _hdfs(authority: str) -> Filesystem:
    from etl.hdfs import open_hdfs  # local work needs no HDFS client

    key = ("hdfs", authority, settings := HdfsSettings.from_environment())
    if key not in _OPENED:
        _OPENED[key] = open_hdfs(authority, settings)
    return _OPENED[key]

"""HDFS as a filesystem of ours, by one of two drivers: hdfs-native (no JVM) or libhdfs (the site's own client).

Whatever the driver, renames, new files and times of change go through hdfs-native: the NameNode's own exclusive rename
is what publishing stands on, and pyarrow has no way to it.
"""

import errno
import functools
import io
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import hdfs_native
import pyarrow
from pyarrow import fs

from etl.errors import EnvironmentFailure
from etl.hadoop.site_config import site_configuration
from etl.hadoop.umask import site_umask
from etl.storage.filesystem import Filesystem
from etl.storage.hdfs_errors import HdfsFailure, explaining
from etl.storage.hdfs_settings import HdfsSettings
from etl.storage.retry import retrying

# A NameNode that does not answer is told of after 7 s, not after hdfs-native's 3 minutes; the site's own word wins.
_PATIENCE = {
    "dfs.client.failover.max.attempts": "5",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "2000",
}

_NOT_EMPTY = "is non empty"  # a NameNode's words

Result = TypeVar("Result")
Hdfs = TypeVar("Hdfs", bound="HdfsFilesystem")


def is_transient(error: Exception) -> bool:
    """Whether the same call may go through a moment later."""
    return isinstance(error, HdfsFailure) and error.transient


def unless_said(defaults: Mapping[str, str], site: Mapping[str, str]) -> dict[str, str]:
    """Those of our ``defaults`` that the site's configuration says nothing of."""
    return {name: value for name, value in defaults.items() if name not in site}


class HdfsFilesystem(Filesystem):
    """One HDFS, by its authority (``host:port``, or a nameservice of the site). Connects when it is first used.

    A connection belongs to the process that opened it: JVM threads and sockets do not outlive a fork. One that was
    not used yet is opened by each process for itself.
    """

    scheme = "hdfs"

    def __init__(self, authority: str, settings: HdfsSettings) -> None:
        self.authority = authority
        self.settings = settings
        self._lock = threading.Lock()
        self._client: hdfs_native.Client | None = None
        self._owner = 0

    def uri(self, path: str) -> str:
        return f"hdfs://{self.authority}{path}"

    @property
    def client(self) -> hdfs_native.Client:
        """This process's connection. Raises EnvironmentFailure where it is that of a process we were forked from."""
        with self._lock:
            if self._client is None:
                self._client, self._owner = self._connect(), os.getpid()
        self.require_own_process(self._owner)
        return self._client

    def _connect(self) -> hdfs_native.Client:
        # hdfs-native reads the site's files by itself, but neither what they include nor their variables
        with self.explaining("/"):
            return hdfs_native.Client(f"hdfs://{self.authority}", {**_PATIENCE, **site_configuration()})

    @functools.cached_property
    def umask(self) -> int:
        """What the site takes away from the permissions of new files and folders."""
        return site_umask(site_configuration())

    def require_own_process(self, owner: int) -> None:
        """Raise EnvironmentFailure unless ``owner`` is this process."""
        if owner != os.getpid():
            raise EnvironmentFailure(
                f"the connection to hdfs://{self.authority} was opened by process {owner} and is used by its"
                f" fork {os.getpid()}; open places after the fork, in each process"
            )

    def explaining(self, path: str) -> AbstractContextManager[None]:
        """Within this context, what goes wrong at ``path`` is told as ours."""
        return explaining(self.uri(path), f"hdfs://{self.authority}")

    def call(self, path: str, function: Callable[[], Result]) -> Result:
        """What ``function`` returns, its failures told as those of ``path``; it is called again if they may pass."""

        def explained() -> Result:
            with self.explaining(path):
                return function()

        return retrying(explained, is_transient)

    def opening(self, path: str, function: Callable[[], Result]) -> Result:
        """What ``function`` returns, which opens ``path`` for reading. Raises IsADirectoryError for a folder."""
        try:
            return self.call(path, function)
        except FileNotFoundError:  # what a NameNode says of a folder too
            if self.arrow.get_file_info(path).type != fs.FileType.Directory:
                raise
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.uri(path))

    def create(self, path: str) -> hdfs_native.FileWriter:
        """A new file, in a folder that is there, open for writing with hdfs-native."""
        with self.explaining(path):
            return self.client.create(path, self.write_options(overwrite=False, create_parent=False))

    def write_options(self, overwrite: bool, create_parent: bool) -> hdfs_native.WriteOptions:
        """How hdfs-native makes a file, by our settings."""
        return hdfs_native.WriteOptions(
            block_size=self.settings.block_size_bytes,
            replication=self.settings.replication,
            permission=0o666 & ~self.umask,
            overwrite=overwrite,
            create_parent=create_parent,
        )

    def sync(self, path: str) -> None:
        """What can be done is done while a file is open; see the drivers."""

    def sync_folder(self, path: str) -> None:
        """A NameNode has written what it answers to."""

    def rename_new(self, path: str, target: str) -> None:
        self._rename(path, target, overwrite=False)

    def replace(self, path: str, target: str) -> None:
        self._rename(path, target, overwrite=True)

    def _rename(self, path: str, target: str, overwrite: bool) -> None:
        """Rename, again where the answer was lost: ``path`` being gone then means that it took effect."""
        answer_lost = False

        def rename() -> None:
            nonlocal answer_lost
            try:
                self.client.rename(path, target, overwrite)
            except FileExistsError:
                raise
            except FileNotFoundError:
                if not (answer_lost and self._is_there(target)):
                    raise
            except (OSError, RuntimeError):
                answer_lost = True
                raise

        self.call(path, rename)

    def delete_empty(self, path: str) -> None:
        try:
            self.call(path, lambda: self.client.delete(path))
        except HdfsFailure as error:
            if _NOT_EMPTY not in str(error):
                raise

    def _is_there(self, path: str) -> bool:
        try:
            self.client.get_file_info(path)
        except FileNotFoundError:
            return False
        return True

    def touch(self, path: str) -> None:
        now_ms = int(time.time() * 1000)
        self.call(path, lambda: self.client.set_times(path, now_ms, now_ms))


class HdfsHandler(fs.FileSystemHandler, Generic[Hdfs]):
    """What pyarrow calls, as far as both drivers have it the same."""

    def __init__(self, hdfs: Hdfs) -> None:
        self._hdfs = hdfs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HdfsHandler) and self._hdfs is other._hdfs

    def __hash__(self) -> int:
        return id(self._hdfs)

    def get_type_name(self) -> str:
        return f"hdfs by {self._hdfs.settings.driver}"

    def normalize_path(self, path: str) -> str:
        return path

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("nobody empties a whole HDFS")

    def move(self, src: str, dest: str) -> None:
        self._hdfs.replace(src, dest)


def writable(hdfs: HdfsFilesystem, path: str, writer: Any) -> pyarrow.NativeFile:
    """What either driver opened for writing at ``path``, its failures told as ours."""
    return pyarrow.PythonFile(_Writer(hdfs, path, writer), mode="w")


class _Writer(io.RawIOBase):
    """A file being written, its failures told as ours."""

    def __init__(self, hdfs: HdfsFilesystem, path: str, writer: Any) -> None:
        super().__init__()
        self._hdfs, self._path, self._writer = hdfs, path, writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        whole = bytes(data)  # hdfs-native takes any other buffer byte by byte, at 5 MB/s
        with self._hdfs.explaining(self._path):
            return self._writer.write(whole)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._hdfs.explaining(self._path):
                self._writer.close()

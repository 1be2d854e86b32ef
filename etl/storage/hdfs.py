"""HDFS as a `Filesystem`, with one of two drivers: hdfs-native (no JVM) or libhdfs (the site's own client).

With either driver, renames, new files and times of change use hdfs-native: publishing depends on the NameNode's own
exclusive rename, which pyarrow does not offer.
"""

import errno
import functools
import io
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import hdfs_native
import pyarrow
from pyarrow import fs

from etl.errors import EnvironmentFailure, RingsliceError
from etl.hadoop.site_config import site_configuration, site_umask
from etl.storage.filesystem import WRITE_BUFFER_BYTES, Filesystem
from etl.storage.hdfs_errors import HdfsFailure, explain_failure
from etl.storage.hdfs_settings import HdfsSettings

# A NameNode that does not answer is reported after 7 s, not after hdfs-native's 3 minutes; the site's own values win.
_RETRIES = {
    "dfs.client.failover.max.attempts": "5",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "2000",
}

RETRY_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
RETRY_TIMEOUT_S = 5.0  # clients retry by themselves: what took them so long does not pass in a moment

MAX_LISTINGS = 20  # of one folder, if others are deleted in it meanwhile
_NOT_EMPTY = "is non empty"  # a NameNode's words

Result = TypeVar("Result")
Opened = TypeVar("Opened")


class Connection(Generic[Opened]):
    """What ``open_it`` returns, opened when it is first used, in the process that uses it.

    It belongs to that process, because JVM threads and sockets do not survive a fork.
    """

    def __init__(self, authority: str, open_it: Callable[[], Opened]) -> None:
        self._authority, self._open = authority, open_it
        self._lock = threading.Lock()
        self._opened: tuple[Opened, int] | None = None

    def get(self) -> Opened:
        """Raises EnvironmentFailure if the process that opened it is another one, from which this one was forked."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open(), os.getpid()
        opened, owner = self._opened
        if owner != os.getpid():
            raise EnvironmentFailure(
                f"the connection to hdfs://{self._authority} was opened by process {owner} and is used by its"
                f" fork {os.getpid()}; open places after the fork, in each process"
            )
        return opened


class HdfsFilesystem(Filesystem):
    """One HDFS, by its authority (``host:port``, or a nameservice of the site). Connects when it is first used."""

    scheme = "hdfs"

    def __init__(self, authority: str, settings: HdfsSettings) -> None:
        self.authority = authority
        self.settings = settings
        self._client = Connection(authority, self._connect)

    @property
    @abstractmethod
    def driver(self) -> Any:
        """What lists, reads and writes: the methods of a `pyarrow.fs.FileSystem` that `_Handler` calls.

        Their failures are the client's.
        """

    @functools.cached_property
    def arrow(self) -> fs.FileSystem:
        return fs.PyFileSystem(_Handler(self))

    def uri(self, path: str) -> str:
        return f"hdfs://{self.authority}{path}"

    @property
    def client(self) -> hdfs_native.Client:
        """This process's connection by hdfs-native. Raises EnvironmentFailure after a fork."""
        return self._client.get()

    def _connect(self) -> hdfs_native.Client:
        # hdfs-native reads the site's files by itself, but neither what they include nor their variables
        with self.explain_errors("/"):
            return hdfs_native.Client(f"hdfs://{self.authority}", {**_RETRIES, **site_configuration()})

    @functools.cached_property
    def umask(self) -> int:
        """The site's umask for new files and folders."""
        return site_umask(site_configuration())

    @contextmanager
    def explain_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except RingsliceError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            place, address = self.uri(path), self.uri("").rstrip("/")
            raise explain_failure(error, self.words_of(error), place, address) from error

    def words_of(self, error: Exception) -> str:
        """What the client reports of an error that it raised in this thread."""
        return str(error)

    def call(self, path: str, function: Callable[[], Result]) -> Result:
        """The result of ``function``, called again after each of `RETRY_PAUSES_S` while its failure is transient.

        For calls that may take effect twice, such as to read, to list, or to delete what may not be there. Its failures
        are those of ``path``.
        """
        deadline = time.monotonic() + RETRY_TIMEOUT_S
        for pause_s in RETRY_PAUSES_S:
            try:
                with self.explain_errors(path):
                    return function()
            except HdfsFailure as failure:
                if not failure.is_transient or time.monotonic() > deadline:
                    raise
            time.sleep(pause_s)
        with self.explain_errors(path):
            return function()

    def create(self, path: str) -> hdfs_native.FileWriter:
        """A new file, in an existing folder, open for writing with hdfs-native."""
        options = hdfs_native.WriteOptions(
            block_size=self.settings.block_size_bytes,
            replication=self.settings.replication,
            permission=0o666 & ~self.umask,
            overwrite=False,
            create_parent=False,
        )
        with self.explain_errors(path):
            return self.client.create(path, options)

    def buffered(self, path: str, write: Callable[[bytes], object], close: Callable[[], object]) -> pyarrow.NativeFile:
        """A buffered file at ``path`` that a driver writes and closes by these functions, with failures explained."""
        file = pyarrow.PythonFile(_Writer(self, path, write, close), mode="w")
        return pyarrow.BufferedOutputStream(file, WRITE_BUFFER_BYTES)

    def sync(self, path: str) -> None:
        """The drivers do what can be done while a file is open."""

    def sync_folder(self, path: str) -> None:
        """A NameNode has written what it acknowledges."""

    def rename_new(self, path: str, target: str) -> None:
        """Rename by the NameNode's own exclusive rename."""
        self._rename(path, target, overwrite=False)

    def replace(self, path: str, target: str) -> None:
        """Rename over what has the name, in one step of the NameNode."""
        self._rename(path, target, overwrite=True)

    def _rename(self, path: str, target: str, overwrite: bool) -> None:
        """Rename; again if the answer was lost: if ``path`` is gone then, the first one took effect."""
        is_answer_lost = False

        def rename() -> None:
            nonlocal is_answer_lost
            try:
                self.client.rename(path, target, overwrite)
            except FileExistsError:
                raise
            except FileNotFoundError:
                if not (is_answer_lost and self._exists(target)):
                    raise
            except (OSError, RuntimeError):
                is_answer_lost = True
                raise

        self.call(path, rename)

    def _exists(self, path: str) -> bool:
        try:
            self.client.get_file_info(path)
        except FileNotFoundError:
            return False
        return True

    def delete_empty(self, path: str) -> None:
        """Delete without what is below; the NameNode refuses a folder that is not empty."""
        try:
            self.call(path, lambda: self.client.delete(path))
        except HdfsFailure as error:
            if _NOT_EMPTY not in str(error):
                raise

    def touch(self, path: str) -> None:
        """Set the times by this machine's clock, as HDFS takes them from its clients."""
        now_ms = int(time.time() * 1000)
        self.call(path, lambda: self.client.set_times(path, now_ms, now_ms))


class _Handler(fs.FileSystemHandler):
    """What pyarrow calls: a driver that is opened late and in this process, with failures explained and retried.

    It lists, reads, makes folders and deletes; all else has promises of its own (`Filesystem`). Files open for reading
    are the driver's own: Python between pyarrow's and their readers costs a third more CPU time.
    """

    def __init__(self, hdfs: HdfsFilesystem) -> None:
        self._hdfs = hdfs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and self._hdfs is other._hdfs

    def __hash__(self) -> int:
        return id(self._hdfs)

    def get_type_name(self) -> str:
        return f"hdfs by {self._hdfs.settings.driver}"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        try:
            return self._call(path, lambda driver: driver.get_file_info(path))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        for _ in range(MAX_LISTINGS):
            try:
                return self._call(selector.base_dir, lambda driver: driver.get_file_info(selector))
            except FileNotFoundError:
                if self._info(selector.base_dir).type == fs.FileType.Directory:
                    continue  # a folder below it went meanwhile
                if selector.allow_not_found:
                    return []
                raise
        raise EnvironmentFailure(f"{self._hdfs.uri(selector.base_dir)}: folders in it go while it is listed; run again")

    def create_dir(self, path: str, recursive: bool) -> None:
        self._call(path, lambda driver: driver.create_dir(path, recursive=recursive))

    def delete_dir(self, path: str) -> None:
        self._call(path, lambda driver: driver.delete_dir(path))

    def delete_file(self, path: str) -> None:
        self._call(path, lambda driver: driver.delete_file(path))

    def open_input_stream(self, path: str) -> pyarrow.NativeFile:
        return self._open(path, lambda driver: driver.open_input_stream(path, compression=None))

    def open_input_file(self, path: str) -> pyarrow.NativeFile:
        return self._open(path, lambda driver: driver.open_input_file(path))

    def _refuse(self, *_: object, **__: object) -> Any:
        raise NotImplementedError("use the methods of `Filesystem`")

    copy_file = move = open_output_stream = open_append_stream = _refuse
    delete_dir_contents = delete_root_dir_contents = _refuse

    def _call(self, path: str, function: Callable[[Any], Any]) -> Any:
        return self._hdfs.call(path, lambda: function(self._hdfs.driver))

    def _open(self, path: str, function: Callable[[Any], pyarrow.NativeFile]) -> pyarrow.NativeFile:
        """Open for reading. Raises IsADirectoryError for a folder."""
        try:
            return self._call(path, function)
        except FileNotFoundError:  # a NameNode reports a folder in this way, too
            if self._info(path).type != fs.FileType.Directory:
                raise
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._hdfs.uri(path))


class _Writer(io.RawIOBase):
    """A file that a driver opened for writing, with failures explained."""

    def __init__(
        self, hdfs: HdfsFilesystem, path: str, write: Callable[[bytes], object], close: Callable[[], object]
    ) -> None:
        super().__init__()
        self._hdfs, self._path, self._write, self._close = hdfs, path, write, close

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        whole = bytes(data)  # hdfs-native takes any other buffer byte by byte, at 5 MB/s
        with self._hdfs.explain_errors(self._path):
            self._write(whole)
        return len(whole)

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._hdfs.explain_errors(self._path):
                self._close()

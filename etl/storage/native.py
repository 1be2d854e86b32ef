"""The driver without a JVM: hdfs-native, a client in Rust.

A file is on its DataNodes' disks when it is closed: hdfs-native has them sync each full block, and we the last one. It
has no hsync of erasure-coded files.
"""

import errno
import functools
import io
import os

import hdfs_native
import pyarrow
from pyarrow import fs

from etl.storage.hdfs import HdfsFilesystem
from etl.storage.hdfs_errors import UNSUPPORTED_CODEC

CELL_BYTES = 1 << 20  # of all policies that Hadoop comes with


class NativeHdfs(HdfsFilesystem):
    """HDFS by hdfs-native."""

    @functools.cached_property
    def driver(self) -> "_Driver":
        """hdfs-native as a pyarrow filesystem."""
        return _Driver(self)

    def open_new(self, path: str) -> pyarrow.NativeFile:
        """Create the file; its last block is synced when it is closed."""
        writer = self.create(path)
        return self.buffered(path, writer.write, lambda: self._close_synced(path, writer))

    def _close_synced(self, path: str, writer: hdfs_native.FileWriter) -> None:
        """Close a file, which is on disks then; hdfs-native refuses that of one that is erasure-coded."""
        is_striped = False
        try:
            writer.hsync()
        except RuntimeError as error:
            is_striped = "erasure-coded" in str(error)
            if not is_striped:
                raise
        finally:
            writer.close()
        if is_striped:
            self._refuse_xor(path)

    def _refuse_xor(self, path: str) -> None:
        """Raise RuntimeError if what was written cannot be restored: hdfs-native always computes Reed-Solomon's parity.

        A file of one cell has as many copies of itself as there are units of parity; XOR has one.
        """
        summary = self.client.get_content_summary(path)
        if 0 < summary.length <= CELL_BYTES and summary.space_consumed == 2 * summary.length:
            raise RuntimeError(UNSUPPORTED_CODEC)


class _Driver:
    """hdfs-native with the methods of a pyarrow filesystem; each makes one or a few calls to the NameNode."""

    def __init__(self, hdfs: NativeHdfs) -> None:
        self._hdfs = hdfs

    @property
    def _client(self) -> hdfs_native.Client:
        return self._hdfs.client

    def get_file_info(self, place: str | fs.FileSelector) -> fs.FileInfo | list[fs.FileInfo]:
        if isinstance(place, str):
            return _file_info(self._client.get_file_info(place))
        found = list(self._client.list_status(place.base_dir, place.recursive))
        if [status.path for status in found if not status.isdir] == [place.base_dir]:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return [_file_info(status) for status in found]

    def create_dir(self, path: str, recursive: bool) -> None:
        self._client.mkdirs(path, 0o777 & ~self._hdfs.umask, create_parent=recursive)

    def delete_dir(self, path: str) -> None:
        self._client.delete(path, recursive=True)

    def delete_file(self, path: str) -> None:
        if not self._client.delete(path, recursive=False):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def open_input_stream(self, path: str, compression: None) -> pyarrow.NativeFile:
        del compression
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pyarrow.NativeFile:
        return pyarrow.PythonFile(_Reader(self._hdfs, path, self._client.read(path)), mode="r")


def _file_info(status: hdfs_native.FileStatus) -> fs.FileInfo:
    mtime = status.modification_time / 1000
    if status.isdir:
        return fs.FileInfo(status.path, fs.FileType.Directory, mtime=mtime)
    return fs.FileInfo(status.path, fs.FileType.File, size=status.length, mtime=mtime)


class _Reader(io.RawIOBase):
    """An open file, with failures explained."""

    def __init__(self, hdfs: HdfsFilesystem, path: str, reader: hdfs_native.FileReader) -> None:
        super().__init__()
        self._hdfs, self._path, self._reader = hdfs, path, reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with self._hdfs.explain_errors(self._path):
            return self._reader.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._reader.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return self._reader.tell()

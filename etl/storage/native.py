"""The driver without a JVM: hdfs-native, a client in Rust, as a pyarrow filesystem.

A file is on its DataNodes' disks when it is closed: hdfs-native has them sync each block that is full, we the last. It
has no hsync of erasure-coded files.
"""

import errno
import functools
import io
import os
from collections.abc import Callable
from typing import Any

import hdfs_native
import pyarrow
from pyarrow import fs

from etl.storage.filesystem import WRITE_BUFFER_BYTES
from etl.storage.hdfs import HdfsFilesystem, HdfsHandler, writable
from etl.storage.hdfs_errors import UNSUPPORTED_CODEC

CELL_BYTES = 1 << 20  # of all policies that Hadoop comes with


class NativeHdfs(HdfsFilesystem):
    """HDFS by hdfs-native."""

    @functools.cached_property
    def arrow(self) -> fs.FileSystem:
        return fs.PyFileSystem(_Handler(self))

    def open_new(self, path: str) -> pyarrow.NativeFile:
        return pyarrow.BufferedOutputStream(_writable(self, path, self.create(path)), WRITE_BUFFER_BYTES)


class _Handler(HdfsHandler[HdfsFilesystem]):
    """What pyarrow calls; each call is one or a few of the NameNode."""

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> fs.FileInfo:
        try:
            return _file_info(self._ask(path, lambda client: client.get_file_info(path)))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        folder = selector.base_dir
        try:
            found = self._ask(folder, lambda client: list(client.list_status(folder, selector.recursive)))
        except FileNotFoundError:
            if selector.allow_not_found:
                return []
            raise
        if [status.path for status in found if not status.isdir] == [folder]:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._hdfs.uri(folder))
        return [_file_info(status) for status in found]

    def create_dir(self, path: str, recursive: bool) -> None:
        self._ask(path, lambda client: client.mkdirs(path, 0o777 & ~self._hdfs.umask, create_parent=recursive))

    def delete_dir(self, path: str) -> None:
        self._ask(path, lambda client: client.delete(path, recursive=True))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        selector = fs.FileSelector(path, allow_not_found=missing_dir_ok)
        for info in self.get_file_info_selector(selector):
            self.delete_dir(info.path)

    def delete_file(self, path: str) -> None:
        if not self._ask(path, lambda client: client.delete(path, recursive=False)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._hdfs.uri(path))

    def copy_file(self, src: str, dest: str) -> None:
        with self.open_input_stream(src) as source, self.open_output_stream(dest, None) as target:
            while data := source.read(WRITE_BUFFER_BYTES):
                target.write(data)

    def open_input_stream(self, path: str) -> pyarrow.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pyarrow.NativeFile:
        reader = self._hdfs.opening(path, lambda: self._hdfs.client.read(path))
        return pyarrow.PythonFile(_Reader(self._hdfs, path, reader), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        del metadata
        options = self._hdfs.write_options(overwrite=True, create_parent=True)
        return _writable(self._hdfs, path, self._ask(path, lambda client: client.create(path, options)))

    def open_append_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        del metadata
        return _writable(self._hdfs, path, self._ask(path, lambda client: client.append(path)))

    def _ask(self, path: str, function: Callable[[hdfs_native.Client], Any]) -> Any:
        return self._hdfs.call(path, lambda: function(self._hdfs.client))


def _writable(hdfs: HdfsFilesystem, path: str, writer: hdfs_native.FileWriter) -> pyarrow.NativeFile:
    return writable(hdfs, path, _Synced(hdfs, path, writer))


class _Synced:
    """A file being written, which is on disks when it is closed."""

    def __init__(self, hdfs: HdfsFilesystem, path: str, writer: hdfs_native.FileWriter) -> None:
        self._hdfs, self._path, self._writer = hdfs, path, writer

    def write(self, data: bytes) -> int:
        return self._writer.write(data)

    def close(self) -> None:
        striped = False
        try:
            self._writer.hsync()
        except RuntimeError as error:
            striped = "erasure-coded" in str(error)
            if not striped:
                raise
        finally:
            self._writer.close()
        if striped:
            self._refuse_xor()

    def _refuse_xor(self) -> None:
        """Raise where what was written cannot be restored: hdfs-native computes Reed-Solomon's parity, whatever it is.

        A file of one cell has as many copies of itself as there are units of parity; XOR has one.
        """
        summary = self._hdfs.client.get_content_summary(self._path)
        if 0 < summary.length <= CELL_BYTES and summary.space_consumed == 2 * summary.length:
            raise RuntimeError(UNSUPPORTED_CODEC)


def _file_info(status: hdfs_native.FileStatus) -> fs.FileInfo:
    mtime = status.modification_time / 1000
    if status.isdir:
        return fs.FileInfo(status.path, fs.FileType.Directory, mtime=mtime)
    return fs.FileInfo(status.path, fs.FileType.File, size=status.length, mtime=mtime)


class _Reader(io.RawIOBase):
    """An open file, its failures told as ours."""

    def __init__(self, hdfs: HdfsFilesystem, path: str, reader: hdfs_native.FileReader) -> None:
        super().__init__()
        self._hdfs, self._path, self._reader = hdfs, path, reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with self._hdfs.explaining(self._path):
            return self._reader.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._reader.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return self._reader.tell()

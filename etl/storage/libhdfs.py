"""The driver with a JVM: libhdfs, Hadoop's own client, as a pyarrow filesystem.

pyarrow has no way to its hsync: a file that is closed is with its DataNodes, and on their disks when their kernels
write it, or at once where the site has dfs.datanode.synconclose.
"""

import ctypes
import errno
import functools
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow
from pyarrow import fs

from etl.errors import DEBUG_VARIABLE
from etl.hadoop import umask
from etl.hadoop.site_config import class_path, java_home, libhdfs_folder, site_configuration
from etl.storage.filesystem import WRITE_BUFFER_BYTES
from etl.storage.hdfs import HdfsFilesystem, HdfsHandler, unless_said, writable
from etl.storage.hdfs_errors import HdfsFailure

_STRIPED = "Append on EC file"  # what a NameNode says where it has erasure-coded a file
IN_CONTAINER = "CONTAINER_ID"  # set by YARN
DEFAULT_REPLICATION = 3  # Hadoop's own, where the site says nothing
# As few tries and seconds as hdfs-native takes by our settings.
_PATIENCE = {
    "ipc.client.connect.max.retries": "5",
    "ipc.client.connect.retry.interval": "1000",
    "ipc.client.connect.max.retries.on.timeouts": "2",
    "dfs.client.retry.window.base": "1000",  # between rounds through a block's DataNodes
    "dfs.client.failover.max.attempts": "5",
    "dfs.client.failover.sleep.max.millis": "2000",
}


class LibhdfsHdfs(HdfsFilesystem):
    """HDFS by libhdfs. A file is made by hdfs-native, which never makes its folder too, and filled by libhdfs."""

    def __init__(self, authority: str, settings: Any) -> None:
        super().__init__(authority, settings)
        self._jvm_lock = threading.Lock()
        self._jvm_owner = 0
        self._connected: fs.HadoopFileSystem | None = None

    @functools.cached_property
    def arrow(self) -> fs.FileSystem:
        return fs.PyFileSystem(_Handler(self))

    def open_new(self, path: str) -> pyarrow.NativeFile:
        self.create(path).close()
        try:
            stream = self.call(path, lambda: self.connected.open_append_stream(path, compression=None))
        except HdfsFailure as error:
            if _STRIPED not in str(error):
                raise
            stream = self._open_striped(path)
        return pyarrow.BufferedOutputStream(writable(self, path, stream), WRITE_BUFFER_BYTES)

    def _open_striped(self, path: str) -> pyarrow.NativeFile:
        """Open the new file ``path`` of an erasure-coded folder, to which nothing can be appended: it is made again.

        Java makes its folder, too, where that was deleted meanwhile. A file that was in it before tells.
        """
        witness = f"{path}-{secrets.token_hex(4)}"
        self.create(witness).close()
        stream = self.call(path, lambda: self.connected.open_output_stream(path, compression=None))
        with self.explaining(path):
            if self.client.delete(witness):
                return stream
            stream.close()
            self.client.delete(path)
        self.delete_empty(os.path.dirname(path))
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.uri(path))

    @property
    def connected(self) -> fs.HadoopFileSystem:
        """This process's connection; the first starts the JVM. Raises EnvironmentFailure, also after a fork."""
        with self._jvm_lock:
            if self._connected is None:
                self._connected, self._jvm_owner = self._open(), os.getpid()
        self.require_own_process(self._jvm_owner)
        return self._connected

    @contextmanager
    def explaining(self, path: str) -> Iterator[None]:
        with super().explaining(path):
            try:
                yield
            except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError):
                raise
            except OSError as error:
                if error.errno is None:  # of pyarrow, not of Java
                    raise
                raise OSError(_root_cause() or str(error)) from error  # pyarrow says "Unknown error 255"

    def _open(self) -> fs.HadoopFileSystem:
        start_environment(self.settings.heap_bytes)
        host, _, port = self.authority.partition(":")
        site = site_configuration()
        replication = self.settings.replication or int(site.get("dfs.replication", DEFAULT_REPLICATION))
        with self.explaining("/"):
            return fs.HadoopFileSystem(
                host,
                int(port or 0),  # 0: a nameservice of the site
                user=self.settings.user,
                replication=replication,
                default_block_size=self.settings.block_size_bytes,
                extra_conf=unless_said(_PATIENCE, site) | {umask.PROPERTY: f"{self.umask:03o}"},
            )


def start_environment(heap_bytes: int) -> None:
    """Set what libhdfs reads when it starts its JVM, where the site has not: jars, library, heap. Quiet the JVM.

    -Xrs leaves SIGINT and SIGTERM to Python. Raises EnvironmentFailure where something is missing.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["ARROW_LIBHDFS_DIR"] = str(libhdfs_folder())
    os.environ["CLASSPATH"] = class_path()
    options = os.environ.get("LIBHDFS_OPTS", "")
    if "-Xmx" not in options:
        options += f" -Xmx{heap_bytes >> 20}m -XX:+UseSerialGC"
        if IN_CONTAINER in os.environ:  # a task is over before the better of Java's two compilers pays
            options += " -XX:TieredStopAtLevel=1"
    if "-Xrs" not in options:
        options += " -Xrs"
    os.environ["LIBHDFS_OPTS"] = options.strip()
    if not os.environ.get(DEBUG_VARIABLE):
        _hush_java()


def _hush_java() -> None:
    """Send what the JVM and libhdfs print (stack traces, for failures that are told as ours) to nowhere.

    They write to descriptor 2, whatever Python does; so Python's own standard error moves to another.
    """
    if sys.stderr.fileno() != 2:
        return
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _root_cause() -> str:
    """What Java raised last in this thread, as ``Class: message``; empty where libhdfs does not tell.

    Of what the NameNode raised, the root is a mere RemoteException; the stack trace names its class.
    """
    library = ctypes.CDLL(os.path.join(os.environ["ARROW_LIBHDFS_DIR"], "libhdfs.so"))  # the one that pyarrow loaded
    root, trace = library.hdfsGetLastExceptionRootCause, library.hdfsGetLastExceptionStackTrace
    root.restype = trace.restype = ctypes.c_char_p
    line = (root() or b"").decode(errors="replace").strip()
    remote = re.search(r"RemoteException\(([\w.$]+)\)", (trace() or b"").decode(errors="replace"))
    return re.sub(r"^RemoteException: ", f"{remote[1]}: ", line) if remote else line


class _Handler(HdfsHandler[LibhdfsHdfs]):
    """What pyarrow calls, handed to its own HadoopFileSystem: opened late, in this process, its failures told as ours.

    Files open for reading are pyarrow's own: Python between them and their readers costs a third more CPU time.
    """

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return self._ask(paths[0] if paths else "/", lambda hadoop: hadoop.get_file_info(paths))

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return self._ask(selector.base_dir, lambda hadoop: hadoop.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        self._ask(path, lambda hadoop: hadoop.create_dir(path, recursive=recursive))

    def delete_dir(self, path: str) -> None:
        self._ask(path, lambda hadoop: hadoop.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self._ask(path, lambda hadoop: hadoop.delete_dir_contents(path, missing_dir_ok=missing_dir_ok))

    def delete_file(self, path: str) -> None:
        self._ask(path, lambda hadoop: hadoop.delete_file(path))

    def copy_file(self, src: str, dest: str) -> None:
        self._ask(src, lambda hadoop: hadoop.copy_file(src, dest))

    def open_input_stream(self, path: str) -> pyarrow.NativeFile:
        return self._hdfs.opening(path, lambda: self._hdfs.connected.open_input_stream(path, compression=None))

    def open_input_file(self, path: str) -> pyarrow.NativeFile:
        return self._hdfs.opening(path, lambda: self._hdfs.connected.open_input_file(path))

    def open_output_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        del metadata
        return writable(
            self._hdfs, path, self._ask(path, lambda hadoop: hadoop.open_output_stream(path, compression=None))
        )

    def open_append_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        del metadata
        return writable(
            self._hdfs, path, self._ask(path, lambda hadoop: hadoop.open_append_stream(path, compression=None))
        )

    def _ask(self, path: str, function: Callable[[fs.HadoopFileSystem], Any]) -> Any:
        return self._hdfs.call(path, lambda: function(self._hdfs.connected))

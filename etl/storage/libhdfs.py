"""The driver with a JVM: libhdfs, Hadoop's own client, as a pyarrow filesystem.

pyarrow does not offer its hsync: a closed file is at its DataNodes, and on their disks when their kernels write it, or
at once if the site sets dfs.datanode.synconclose.
"""

import ctypes
import errno
import os
import re
import secrets
import sys

import pyarrow
from pyarrow import fs

from etl.errors import is_debug
from etl.hadoop.site_config import UMASK, class_path, java_home, libhdfs_folder, site_configuration
from etl.storage.hdfs import Connection, HdfsFilesystem
from etl.storage.hdfs_errors import KINDS, HdfsFailure
from etl.storage.hdfs_settings import HdfsSettings, split_authority

_STRIPED = "Append on EC file"  # a NameNode's words for an erasure-coded file
IN_CONTAINER = "CONTAINER_ID"  # set by YARN
DEFAULT_REPLICATION = 3  # Hadoop's own, if the site sets none
# As few tries and seconds as hdfs-native takes by our settings.
_RETRIES = {
    "ipc.client.connect.max.retries": "5",
    "ipc.client.connect.retry.interval": "1000",
    "ipc.client.connect.max.retries.on.timeouts": "2",
    "dfs.client.retry.window.base": "1000",  # between rounds through a block's DataNodes
    "dfs.client.failover.max.attempts": "5",
    "dfs.client.failover.sleep.max.millis": "2000",
}


class LibhdfsHdfs(HdfsFilesystem):
    """HDFS by libhdfs. A file is made by hdfs-native, which never makes its folder too, and filled by libhdfs."""

    def __init__(self, authority: str, settings: HdfsSettings) -> None:
        super().__init__(authority, settings)
        self._jvm = Connection(authority, self._open_jvm)

    @property
    def driver(self) -> fs.HadoopFileSystem:
        """This process's connection; the first one starts the JVM. Raises EnvironmentFailure, also after a fork."""
        return self._jvm.get()

    def open_new(self, path: str) -> pyarrow.NativeFile:
        """Make the file with hdfs-native, and append to it with libhdfs."""
        self.create(path).close()
        try:
            stream = self.call(path, lambda: self.driver.open_append_stream(path, compression=None))
        except HdfsFailure as error:
            if _STRIPED not in str(error):
                raise
            stream = self._open_striped(path)
        return self.buffered(path, stream.write, stream.close)

    def _open_striped(self, path: str) -> pyarrow.NativeFile:
        """Open the new file ``path`` of an erasure-coded folder, to which nothing can be appended, by making it again.

        Java makes its folder, too, if that was deleted meanwhile: then the witness, made before, is gone.
        """
        witness = f"{path}-{secrets.token_hex(4)}"
        self.create(witness).close()
        stream = self.call(path, lambda: self.driver.open_output_stream(path, compression=None))
        with self.explain_errors(path):
            if self.client.delete(witness):
                return stream
            stream.close()
            self.client.delete(path)
        self.delete_empty(os.path.dirname(path))
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.uri(path))

    def words_of(self, error: Exception) -> str:
        """Java's last exception, if pyarrow has only a number of it."""
        is_of_java = isinstance(error, OSError) and error.errno is not None  # else of pyarrow or hdfs-native
        if not is_of_java or isinstance(error, tuple(KINDS)):
            return str(error)
        return _root_cause() or str(error)  # pyarrow reports "Unknown error 255"

    def _open_jvm(self) -> fs.HadoopFileSystem:
        start_environment(self.settings.heap_bytes)
        host, port = split_authority(self.authority)
        site = site_configuration()
        replication = self.settings.replication or int(site.get("dfs.replication", DEFAULT_REPLICATION))
        retries = {name: value for name, value in _RETRIES.items() if name not in site}
        with self.explain_errors("/"):
            return fs.HadoopFileSystem(
                host,
                int(port or 0),  # 0: a nameservice of the site
                user=self.settings.user,
                replication=replication,
                default_block_size=self.settings.block_size_bytes,
                extra_conf=retries | {UMASK: f"{self.umask:03o}"},
            )


def start_environment(heap_bytes: int) -> None:
    """Set what libhdfs reads when it starts its JVM, unless the site has: jars, library, heap. Quiet the JVM.

    -Xrs leaves SIGINT and SIGTERM to Python. Raises EnvironmentFailure if something is missing.
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
    if not is_debug():
        _hush_java()


def _hush_java() -> None:
    """Discard what the JVM and libhdfs print: stack traces of failures that are explained in one line.

    They write to descriptor 2, so Python's own standard error moves to another one.
    """
    if sys.stderr.fileno() != 2:
        return
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _root_cause() -> str:
    """Java's last exception in this thread, as ``Class: message``; empty if libhdfs has none.

    For an exception of the NameNode it is a RemoteException, whose class is in the stack trace.
    """
    library = ctypes.CDLL(os.path.join(os.environ["ARROW_LIBHDFS_DIR"], "libhdfs.so"))  # the one that pyarrow loaded
    root, trace = library.hdfsGetLastExceptionRootCause, library.hdfsGetLastExceptionStackTrace
    root.restype = trace.restype = ctypes.c_char_p
    line = (root() or b"").decode(errors="replace").strip()
    remote = re.search(r"RemoteException\(([\w.$]+)\)", (trace() or b"").decode(errors="replace"))
    return re.sub(r"^RemoteException: ", f"{remote[1]}: ", line) if remote else line

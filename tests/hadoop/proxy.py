"""A TCP proxy before a DataNode, that passes what it sends, or stalls.

The DataNode reports `PROXIED` as its host name to the NameNode, beside its address. Clients use the address, unless
their site has dfs.client.use.datanode.hostname: clients that are to be disturbed have a site of their own.
"""

import select
import shutil
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tests.hadoop.cluster import Cluster
from tests.hadoop.configuration import LOOPBACK, PROXIED, write_site

CHUNK_BYTES = 1 << 16
LOOK_S = 0.05
CONNECT_TIMEOUT_S = 5.0


class Proxy(socketserver.ThreadingTCPServer):
    """Between clients of ``listen`` and the server at ``target``; both are (host, port). It passes everything at first.

    ``passed_bytes`` (from the server) and ``stalled`` (connections with something to send) count what happened to them.
    """

    allow_reuse_address, request_queue_size = True, 128

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self.passed_bytes = self.stalled = 0
        self._target = target
        self._changed = threading.Condition()
        self._stall_at: int | None = None
        self._ends = False
        super().__init__(listen, socketserver.BaseRequestHandler)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=[LOOK_S], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self.shutdown()
        self.server_close()  # after the threads of all connections

    def stall(self, after_bytes: int) -> None:
        """Pass so many bytes of the server more, over all connections, and then none, which stay open."""
        with self._changed:
            self._stall_at = self.passed_bytes + after_bytes

    def go_on(self) -> None:
        """Pass everything again, also the bytes that were kept back."""
        with self._changed:
            self._stall_at = None
            self._changed.notify_all()

    def finish_request(self, client: Any, address: object) -> None:
        """Serve a connection, in a thread of its own; either side may go at any time."""
        with suppress(OSError), socket.create_connection(self._target, CONNECT_TIMEOUT_S) as server:
            self._relay(client, server)

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        """One thread for both directions."""
        while not self._ends:
            for source in select.select([client, server], [], [], LOOK_S)[0]:
                data = source.recv(CHUNK_BYTES)
                if not data:
                    return
                if source is client:
                    if not self.pass_request(client, server, data):
                        return
                    continue
                self._hold(len(data))
                client.sendall(data)

    def pass_request(self, client: socket.socket, server: socket.socket, data: bytes) -> bool:
        """Send what the client sent; False ends the connection."""
        server.sendall(data)
        return True

    def _hold(self, size_bytes: int) -> None:
        """Count what the server sent, once it may be passed."""
        with self._changed:
            if self._is_stalled(size_bytes):
                self.stalled += 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._ends or not self._is_stalled(size_bytes))
            self.passed_bytes += size_bytes

    def _is_stalled(self, size_bytes: int) -> bool:
        return self._stall_at is not None and self.passed_bytes + size_bytes > self._stall_at


@contextmanager
def start_proxy(cluster: Cluster, folder: Path) -> Iterator[tuple[Proxy, dict[str, str]]]:
    """A proxy before the cluster's DataNode, and the environment of clients that use it; its site is in ``folder``."""
    site = shutil.copytree(cluster.conf_dir, folder / "proxied-conf")
    write_site(site / "hdfs-site.xml", {"dfs.replication": 1, "dfs.client.use.datanode.hostname": True})
    port = cluster.ports["datanode"]
    with Proxy((PROXIED, port), (LOOPBACK, port)) as proxy:
        yield proxy, cluster.environment() | {"HADOOP_CONF_DIR": str(site)}

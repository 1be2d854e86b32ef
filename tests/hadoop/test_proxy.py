"""The proxy passes, resets and stalls, and counts how often it did."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.hadoop.proxy import Proxy
from tests.lib.commands import PATIENCE_S

LOOPBACK = ("127.0.0.1", 0)
SIZE = 1_000_000


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Before a server that sends SIZE bytes on every connection, once it was sent a byte, and closes it."""

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):  # the proxy may reset this connection
                if connection.recv(1) == b"e":
                    return
                connection.sendall(bytes(SIZE))

    with socket.create_server(LOOPBACK) as listener:
        server = threading.Thread(target=serve)
        server.start()
        with Proxy(LOOPBACK, listener.getsockname()) as proxy:
            yield proxy
        with socket.create_connection(listener.getsockname()) as last:
            last.sendall(b"e")
        server.join()


def receive(proxy: Proxy, timeout_s: float = PATIENCE_S) -> int:
    """How many bytes a new connection gives before its end, or before it stalls for ``timeout_s``."""
    received = 0
    with socket.create_connection(proxy.address, timeout_s) as connection, suppress(TimeoutError):
        connection.sendall(b"a")
        while data := connection.recv(1 << 16):
            received += len(data)
    return received


def test_it_passes_resets_and_stalls(proxy: Proxy) -> None:
    assert receive(proxy) == SIZE
    assert (proxy.connections, proxy.passed_bytes, proxy.resets, proxy.stalled) == (1, SIZE, 0, 0)
    proxy.reset([100_000, SIZE + 1])
    with pytest.raises(ConnectionResetError):
        receive(proxy)
    assert receive(proxy) == SIZE  # a connection that is too short is not reset
    assert (proxy.connections, proxy.resets) == (3, 1)
    proxy.stall(SIZE // 2)
    assert 0 < receive(proxy, timeout_s=3) <= SIZE // 2
    proxy.wait_until_stalled()
    assert proxy.stalled == 1
    proxy.go_on()
    assert receive(proxy) == SIZE

"""The proxy passes, resets and stalls, and tells how often it did."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.hadoop.proxy import Proxy

LOOPBACK = ("127.0.0.1", 0)
SIZE = 1_000_000


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Before a server that sends SIZE bytes on every connection, once it was sent a byte, and closes it."""

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if connection.recv(1) == b"e":
                    return
                with suppress(OSError):  # the proxy may reset this connection, too
                    connection.sendall(bytes(SIZE))

    with socket.create_server(LOOPBACK) as listener:
        server = threading.Thread(target=serve)
        server.start()
        with Proxy(LOOPBACK, listener.getsockname()) as proxy:
            yield proxy
        with socket.create_connection(listener.getsockname()) as last:
            last.sendall(b"e")
        server.join()


def ask(proxy: Proxy) -> socket.socket:
    connection = socket.create_connection(proxy.address, timeout=0.3)
    connection.sendall(b"a")
    return connection


def receive(connection: socket.socket) -> int:
    """How many bytes came before the end."""
    received = 0
    with connection:
        while data := connection.recv(1 << 16):
            received += len(data)
    return received


def test_it_passes(proxy: Proxy) -> None:
    assert [receive(ask(proxy)) for _ in range(3)] == [SIZE] * 3
    assert (proxy.connections, proxy.passed_bytes, proxy.resets, proxy.stalled) == (3, 3 * SIZE, 0, 0)


def test_it_resets(proxy: Proxy) -> None:
    proxy.reset([1, 100_000, SIZE])
    for _ in range(3):
        with pytest.raises(ConnectionResetError):
            receive(ask(proxy))
    assert receive(ask(proxy)) == SIZE
    assert (proxy.connections, proxy.resets) == (4, 3)


def test_a_connection_too_short_is_not_reset(proxy: Proxy) -> None:
    proxy.reset([SIZE + 1])
    assert receive(ask(proxy)) == SIZE
    assert proxy.resets == 0


def test_it_stalls_and_goes_on(proxy: Proxy) -> None:
    proxy.stall(SIZE + SIZE // 2)
    assert receive(ask(proxy)) == SIZE
    held, received = ask(proxy), 0
    with held, pytest.raises(TimeoutError):
        while data := held.recv(1 << 16):
            received += len(data)
        raise AssertionError("it ended")
    assert 0 < received <= SIZE // 2
    assert proxy.stalled == 1
    proxy.wait_until_stalled()
    proxy.go_on()
    assert receive(ask(proxy)) == SIZE

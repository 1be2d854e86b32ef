"""The bytes that this process sent and received, as the kernel counts them."""

import socket

from tests.lib.ranks.running import wait_until
from train.parallel.usage import tcp_counters, transferred, usage_since

SIZE = 3_000_000


def test_the_payload_of_open_connections_is_counted() -> None:
    """Both ends are here, so what is sent is received, too; a connection that was closed meanwhile does not count."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        before = tcp_counters()
        assert transferred(before, tcp_counters()) == (0, 0)
        left = SIZE
        while left:
            client.sendall(bytes(10_000))
            left -= 10_000
            assert len(peer.recv(10_000, socket.MSG_WAITALL)) == 10_000
        wait_until(lambda: usage_since(before).sent_bytes >= SIZE)
        found = usage_since(before)
        assert (found.sent_bytes, found.received_bytes) == (SIZE, SIZE)
        assert 10**7 < found.peak_memory_bytes < 10**11
        client.close()
        peer.close()
        assert transferred(before, tcp_counters()) == (0, 0)


def test_a_new_connection_counts_from_its_start() -> None:
    assert transferred({1: (10, 20), 2: (5, 5)}, {1: (11, 22), 3: (100, 200)}) == (101, 202)

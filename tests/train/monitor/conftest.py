"""The launcher's store, and a clock that tests set."""

from collections.abc import Iterator

import pytest
from horovod.runner.http.http_server import RendezvousServer

from train.monitor.kv_store import KVStoreClient


class CountingStore(KVStoreClient):
    """Counts the requests."""

    requests = 0

    def _ask(self, method: str, scope: str, key: str, body: bytes | None = None) -> bytes | None:
        self.requests += 1
        return super()._ask(method, scope, key, body)


class Clock:
    """The time in seconds, and the CPU time used."""

    def __init__(self) -> None:
        self.now, self.cpu_s = 1000.0, 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    server = RendezvousServer()
    server.port = server.start()
    server.init([])
    yield server
    server.stop()
    server._httpd.server_close()


@pytest.fixture
def client(server: RendezvousServer) -> CountingStore:
    return CountingStore("127.0.0.1", server.port)

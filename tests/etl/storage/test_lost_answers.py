"""A rename whose answer is lost took effect all the same: it is neither done twice nor told as a failure."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster

RENAME = b"rename2"  # the NameNode's method


class LosingProxy:
    """Stands before a NameNode; hands it the next ``to_lose`` renames, and breaks the connection before the answer."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self.to_lose = self.lost = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._open = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes who waits for it
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for source, sink, asks in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pump, args=(source, sink, asks), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if asks and self.to_lose and RENAME in data:
                    self.to_lose -= 1
                    self.lost += 1
                    source.shutdown(socket.SHUT_RDWR)  # nobody is there to hear the answer
                    sink.sendall(data)
                    sink.shutdown(socket.SHUT_WR)  # after the request
                    return
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[LosingProxy]:
    proxy = LosingProxy(cluster.ports["namenode"])
    yield proxy
    proxy.close()


@pytest.fixture
def folder(proxy: LosingProxy, hdfs_root: Place) -> Place:
    """The test's folder with three files, by way of the proxy."""
    place = open_place(f"hdfs://{proxy.address}{hdfs_root.path}")
    for name in ("a", "b", "c"):
        place.filesystem.open_new((place / name).path).close()
    return place


def names(folder: Place) -> list[str]:
    return [info.base_name for info in folder.children()]


@pytest.mark.integration
@pytest.mark.parametrize("times", [1, 3])
def test_a_rename_took_effect_though_its_answer_was_lost(times: int, proxy: LosingProxy, folder: Place) -> None:
    rename, replace = folder.filesystem.rename_new, folder.filesystem.replace
    proxy.to_lose = times
    rename((folder / "a").path, (folder / "final").path)
    assert (proxy.lost, names(folder)) == (times, ["b", "c", "final"])
    with pytest.raises(FileNotFoundError):  # this answer is heard
        rename((folder / "a").path, (folder / "final").path)
    proxy.to_lose = times
    with pytest.raises(FileExistsError):
        rename((folder / "b").path, (folder / "final").path)
    proxy.to_lose = times
    replace((folder / "c").path, (folder / "final").path)
    assert names(folder) == ["b", "final"]
    assert proxy.lost == 3 * times

"""A rename whose answer is lost took effect: it is neither done twice nor reported as a failure."""

import socket
from collections.abc import Iterator

import pytest

from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.hadoop.proxy import Proxy

RENAME = b"rename2"  # the NameNode's method


class LosingProxy(Proxy):
    """Stands before a NameNode; sends it the next ``to_lose`` renames, and breaks the connection before the answer."""

    to_lose = lost = 0

    def pass_request(self, client: socket.socket, server: socket.socket, data: bytes) -> bool:
        is_lost = self.to_lose > 0 and RENAME in data
        if is_lost:
            self.to_lose -= 1
            self.lost += 1
            client.shutdown(socket.SHUT_RDWR)
        server.sendall(data)
        if is_lost:
            server.shutdown(socket.SHUT_WR)  # after the request
            while server.recv(1 << 16):  # its answer, which nobody gets
                pass
        return not is_lost


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[LosingProxy]:
    with LosingProxy(("127.0.0.1", 0), ("127.0.0.1", cluster.ports["namenode"])) as proxy:
        yield proxy


@pytest.fixture
def folder(proxy: LosingProxy, hdfs_root: Place) -> Place:
    """The test's folder with three files, by way of the proxy."""
    place = open_place(f"hdfs://127.0.0.1:{proxy.address[1]}{hdfs_root.path}")
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

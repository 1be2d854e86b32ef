"""HDFS by both drivers: settings, a rename whose answer is lost; and folders of erasure coding, where both write what
the other reads, and what a lost DataNode does not take.
"""

import os
import random
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import hdfs_native
import pytest

from etl.hadoop.site_config import USER_VARIABLE
from etl.storage.hdfs_settings import (
    BLOCK_SIZE_VARIABLE,
    DRIVER_VARIABLE,
    LIBHDFS,
    NATIVE,
    REPLICATION_VARIABLE,
)
from etl.storage.place import Place, open_place
from tests.etl.conftest import names
from tests.hadoop.cluster import Cluster
from tests.hadoop.configuration import write_site
from tests.hadoop.datanodes import add_datanodes, set_policy
from tests.hadoop.proxy import Proxy
from tests.lib.commands import run, succeeded
from tests.lib.on_hadoop import set_site

MIB = 1 << 20
by_driver = pytest.mark.parametrize("driver", [NATIVE, LIBHDFS])


def run_python(script: str, *words: str, **environment: str) -> str:
    """What a Python process of its own prints; a JVM ends with it."""
    done = succeeded(run(sys.executable, "-c", textwrap.dedent(script), *words, variables=environment))
    assert done.stderr == ""
    return done.stdout


@by_driver
def test_settings_are_kept_and_without_them_the_site_decides(driver: str, hdfs_root: Place) -> None:
    client = hdfs_native.Client(hdfs_root.uri.removesuffix(hdfs_root.path))
    client.set_permission(hdfs_root.path, 0o777)
    script = """
        import sys
        from etl.storage.place import open_place

        folder = open_place(sys.argv[1])
        for name in ("file", "empty"):
            with folder.filesystem.open_new((folder / name).path) as stream:
                stream.write(b"x" * (5 << 20) if name == "file" else b"")
        (folder / "folder").make_folder()
        """
    settings = {USER_VARIABLE: "bob", REPLICATION_VARIABLE: "2", BLOCK_SIZE_VARIABLE: "4MiB"}
    run_python(script, hdfs_root.uri, **{DRIVER_VARIABLE: driver}, **settings)
    for name in ("file", "empty"):
        status = client.get_file_info(f"{hdfs_root.path}/{name}")
        assert (status.owner, status.replication, status.blocksize) == ("bob", 2, 4 * MIB)
        assert status.permission == 0o644
    assert client.get_file_info(f"{hdfs_root.path}/folder").owner == "bob"
    run_python(script, (hdfs_root / "plain").make_folder().uri, **{DRIVER_VARIABLE: driver})
    status = client.get_file_info(f"{hdfs_root.path}/plain/file")
    assert (status.owner, status.replication) == (os.environ[USER_VARIABLE], 1)


@by_driver
def test_the_site_is_read_as_by_hadoop(driver: str, cluster: Cluster, hdfs_root: Place, tmp_path: Path) -> None:
    """A nameservice with a dead NameNode; the umask; what its files include, or the fallback; variables in them."""
    nameservice = {
        "dfs.nameservices": "pair",
        "dfs.ha.namenodes.pair": "first,second",
        "dfs.namenode.rpc-address.pair.first": "127.0.0.1:1",
        "dfs.namenode.rpc-address.pair.second": cluster.uri.removeprefix("hdfs://"),
        "dfs.client.failover.proxy.provider.pair": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
        "dfs.replication": "1",
    }
    write_site(tmp_path / "hdfs-site.xml", nameservice)
    includes = '<xi:include href="more.xml"/><xi:include href="absent.xml"><xi:fallback/></xi:include>'
    begin = '<configuration xmlns:xi="http://www.w3.org/2001/XInclude">'
    (tmp_path / "core-site.xml").write_text(f"{begin}{includes}</configuration>")
    more = {"name": "pair", "fs.defaultFS": "hdfs://${name}", "fs.permissions.umask-mode": "027"}
    write_site(tmp_path / "more.xml", more)
    script = """
        import sys
        from etl.storage.atomic import publish_bytes
        from etl.storage.place import open_place

        root = open_place(sys.argv[1])
        publish_bytes(root / "folder" / "below" / "file", root, b"x")
        print(root.uri, open_place(sys.argv[2]).read_bytes().decode())
        """
    places = (f"hdfs://{hdfs_root.path}", f"hdfs://pair{hdfs_root.path}/folder/below/file")
    variables = {DRIVER_VARIABLE: driver, "HADOOP_CONF_DIR": str(tmp_path)}
    assert run_python(script, *places, **variables) == f"hdfs://pair{hdfs_root.path} x\n"
    client = hdfs_native.Client(cluster.uri)
    found = {info.path.removeprefix(hdfs_root.path): info for info in client.list_status(hdfs_root.path, True)}
    permissions = {name: oct(info.permission) for name, info in found.items() if name}
    assert permissions == {"/folder": "0o750", "/folder/below": "0o750", "/folder/below/file": "0o640"}


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
    place = open_place(f"hdfs://127.0.0.1:{proxy.server_address[1]}{hdfs_root.path}")
    for name in ("a", "b", "c"):
        place.filesystem.open_new((place / name).path).close()
    return place


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


XOR, REED_SOLOMON = "XOR-2-1-1024k", "RS-3-2-1024k"

WRITE = """
    import random, sys
    from etl.errors import EnvironmentFailure
    from etl.storage.atomic import publish_bytes
    from etl.storage.place import open_place

    folder = open_place(sys.argv[1])
    for size in map(int, sys.argv[2:]):
        try:
            publish_bytes(folder / f"final-{size}", folder, random.Random(size).randbytes(size))
            print(size)
        except EnvironmentFailure as error:
            print(error)
"""
READ = """
    import random, sys
    from etl.storage.place import open_place

    for size in map(int, sys.argv[2:]):
        print(open_place(f"{sys.argv[1]}/final-{size}").read_bytes() == random.Random(size).randbytes(size))
"""


def test_libhdfs_opens_files_in_an_erasure_coded_folder(cluster: Cluster, hdfs_root: Place) -> None:
    """Nothing can be appended there. An empty file needs no DataNode. A folder that was deleted is not made again."""
    set_policy(cluster, hdfs_root, XOR)
    script = """
        import sys
        import hdfs_native
        from etl.storage.place import open_place

        folder = open_place(sys.argv[1])
        hdfs, made = folder.filesystem, []
        hdfs.open_new((folder / "file").path).close()
        print([info.base_name for info in folder.children()])
        try:
            hdfs.open_new((folder / "file").path)
        except FileExistsError:
            print("taken")
        below = (folder / "below").make_folder()
        create = hdfs.create

        def create_then_lose_the_folder(path):
            made.append(path)
            writer = create(path)
            if len(made) == 2:
                writer.close()
                below.delete()
            return writer

        hdfs.create = create_then_lose_the_folder
        try:
            hdfs.open_new((below / "file").path)
        except FileNotFoundError as error:
            print("deleted", error.filename == (below / "file").uri, below.exists(), len(made))
        """
    printed = run_python(script, hdfs_root.uri, **{DRIVER_VARIABLE: LIBHDFS})
    assert printed.splitlines() == ["['file']", "taken", "deleted True False 2"]


@pytest.mark.chaos
def test_what_is_written_can_be_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each driver, in each coding, read by the other, with a DataNode gone."""
    sizes = ("0", "100", str(1 << 20), str(7 << 20))
    with Cluster.start(tmp_path / "own", die_with_parent=True) as own, add_datanodes(own, 4) as nodes:
        set_site(own, monkeypatch)
        root = open_place(f"{own.uri}/tmp/coded").make_folder()
        folders = {}
        for policy in (XOR, REED_SOLOMON):
            for driver in (NATIVE, LIBHDFS):
                folder = folders[driver, policy] = (root / f"{driver}-{policy}").make_folder()
                set_policy(own, folder, policy)
                printed = run_python(WRITE, folder.uri, *sizes, **{DRIVER_VARIABLE: driver}).splitlines()
                if (driver, policy) == (NATIVE, XOR):
                    assert printed[0] == "0"
                    assert "has no erasure coding but Reed-Solomon's" in printed[1]
                    assert "take --hdfs-driver libhdfs" in printed[1]
                    assert not (folder / "final-100").exists()
                else:
                    assert printed == list(sizes)
        nodes[random.Random(os.getpid()).randrange(len(nodes))].send(signal.SIGKILL)
        for reader, writer, policy in (
            (LIBHDFS, LIBHDFS, XOR),
            (LIBHDFS, NATIVE, REED_SOLOMON),
            (NATIVE, LIBHDFS, REED_SOLOMON),
            (NATIVE, NATIVE, REED_SOLOMON),
        ):
            read = run_python(READ, folders[writer, policy].uri, *sizes, **{DRIVER_VARIABLE: reader}).splitlines()
            assert read == ["True"] * len(sizes), (reader, writer, policy)

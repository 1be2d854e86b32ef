"""Settings of HDFS, and connections that do not outlive a fork, by both drivers."""

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import hdfs_native
import pytest

from etl.storage.hdfs_settings import (
    BLOCK_SIZE_VARIABLE,
    DRIVER_VARIABLE,
    LIBHDFS,
    NATIVE,
    REPLICATION_VARIABLE,
    USER_VARIABLE,
)
from etl.storage.place import Place
from tests.hadoop.cluster import Cluster
from tests.hadoop.configuration import write_site
from tests.hadoop.proxy import Proxy
from tests.lib.commands import REPOSITORY

MIB = 1 << 20
by_driver = pytest.mark.parametrize("driver", [NATIVE, LIBHDFS])


def run_python(script: str, *words: str, **environment: str) -> str:
    """What a Python process of its own prints; a JVM ends with it."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *words],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == "", done.stderr
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


FORK = """
    import os, sys
    from etl.errors import EnvironmentFailure
    from etl.storage.place import open_place

    place = open_place(sys.argv[1])
    if sys.argv[2] == "used":
        assert place.exists()
    number = os.fork()
    if number == 0:
        try:
            print("there" if place.exists() else "missing", flush=True)
            place.filesystem.touch(place.path)
        except EnvironmentFailure as error:
            print(error, flush=True)
        finally:
            os._exit(0)
    assert os.waitpid(number, 0)[1] == 0
    print("parent", place.exists(), flush=True)
"""


@by_driver
def test_a_connection_does_not_outlive_a_fork(driver: str, hdfs_root: Place) -> None:
    printed, parent = run_python(FORK, hdfs_root.uri, "used", **{DRIVER_VARIABLE: driver}).splitlines()
    assert "was opened by process" in printed
    assert "open places after the fork, in each process" in printed
    assert parent == "parent True"
    file = hdfs_root / "file"
    file.filesystem.open_new(file.path).close()
    unused = run_python(FORK, file.uri, "unused", **{DRIVER_VARIABLE: driver})
    assert unused.splitlines() == ["there", "parent True"], "a place that was not used may be used in a fork"


@by_driver
def test_a_nameservice_whose_first_namenode_is_dead(
    driver: str, cluster: Cluster, hdfs_root: Place, tmp_path: Path
) -> None:
    """hdfs://pair/… as the site's hdfs-site.xml has it; hdfs:/// where that is the default filesystem."""
    site = {
        "dfs.nameservices": "pair",
        "dfs.ha.namenodes.pair": "first,second",
        "dfs.namenode.rpc-address.pair.first": "127.0.0.1:1",
        "dfs.namenode.rpc-address.pair.second": cluster.uri.removeprefix("hdfs://"),
        "dfs.client.failover.proxy.provider.pair": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
        "dfs.replication": "1",
    }
    write_site(tmp_path / "core-site.xml", {"fs.defaultFS": "hdfs://pair"})
    write_site(tmp_path / "hdfs-site.xml", site)
    script = """
        import sys
        from etl.storage.atomic import publish_bytes
        from etl.storage.place import open_place

        folder = open_place(sys.argv[1])
        publish_bytes(folder / "file", folder, b"by a nameservice")
        print(open_place(sys.argv[2]).read_bytes().decode())
        """
    places = (f"hdfs://pair{hdfs_root.path}", f"hdfs://{hdfs_root.path}/file")
    assert run_python(script, *places, **{DRIVER_VARIABLE: driver, "HADOOP_CONF_DIR": str(tmp_path)}) == (
        "by a nameservice\n"
    )


@by_driver
def test_the_site_is_read_as_by_hadoop(driver: str, cluster: Cluster, hdfs_root: Place, tmp_path: Path) -> None:
    """Its umask; the default port; what its files include, and variables in them."""
    host = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}.1"
    include = '<xi:include href="more.xml" xmlns:xi="http://www.w3.org/2001/XInclude"/>'
    (tmp_path / "core-site.xml").write_text(f"<configuration>{include}</configuration>")
    site = {
        "nn": host,
        "fs.defaultFS": "hdfs://${nn}",
        "fs.permissions.umask-mode": "027",
        "dfs.replication": "1",
    }
    write_site(tmp_path / "more.xml", site)
    script = """
        import sys
        from etl.storage.atomic import publish_bytes
        from etl.storage.place import open_place

        root = open_place(sys.argv[1])
        publish_bytes(root / "folder" / "below" / "file", root, b"x")
        print(root.uri)
        """
    with Proxy((host, 8020), ("127.0.0.1", cluster.ports["namenode"])):
        printed = run_python(
            script, f"hdfs://{hdfs_root.path}", **{DRIVER_VARIABLE: driver, "HADOOP_CONF_DIR": str(tmp_path)}
        )
    assert printed == f"hdfs://{host}:8020{hdfs_root.path}\n"
    client = hdfs_native.Client(cluster.uri)
    found = {info.path.removeprefix(hdfs_root.path): info for info in client.list_status(hdfs_root.path, True)}
    permissions = {name: oct(info.permission) for name, info in found.items() if name}
    assert permissions == {"/folder": "0o750", "/folder/below": "0o750", "/folder/below/file": "0o640"}

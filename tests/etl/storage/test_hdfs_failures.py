"""Refusals and failures of HDFS: one line with the remedy, in time, and nothing half-written."""

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow import fs

from etl.storage.hdfs_settings import DRIVER_VARIABLE, LIBHDFS, NATIVE
from etl.storage.place import Place, open_place
from tests.conftest import TreeMaker
from tests.hadoop import health
from tests.hadoop.cluster import Cluster
from tests.lib.commands import Finished, failed, run, succeeded
from tests.lib.on_hadoop import set_site

pytestmark = pytest.mark.integration

by_driver = pytest.mark.parametrize("driver", [NATIVE, LIBHDFS])


@pytest.fixture
def source(make_tree: TreeMaker) -> Path:
    return make_tree({"a": 2, "b": 2})


def ingest(source: object, root: object, driver: str = NATIVE, **environment: str) -> Finished:
    return run("ringslice", "ingest", source, root, variables={DRIVER_VARIABLE: driver, **environment})


def refused(finished: Finished, *lines: str) -> None:
    """It ended with one line that contains all of ``lines``, and without Java's stack trace."""
    for line in lines:
        failed(finished, 3, line)
    assert "\tat " not in finished.stderr, finished.stderr
    assert "Exception" not in finished.stderr.replace("ConnectException", "").replace("RpcException", "")


def files(folder: Place) -> list[str]:
    """What a reader could take for something."""
    return [info.path for info in folder.children(recursive=True) if info.type != fs.FileType.Directory]


def set_quota(cluster: Cluster, folder: Place, **quota: int) -> None:
    query = "&".join(f"{name}quota={value}" for name, value in quota.items())
    path = f"{folder.path}?op=SETQUOTA&user.name={cluster.user}&{query}"
    health.put(f"{cluster.web('namenode')}/webhdfs/v1{path}")


@by_driver
def test_no_namenode_is_there(driver: str, cluster: Cluster, source: Path) -> None:
    """A port that nobody listens at, one that speaks HTTP, a host that does not exist."""
    web = cluster.web("namenode").removeprefix("http://")
    addresses = ["127.0.0.1:1", web, "no-such-host.invalid:8020"]
    with ThreadPoolExecutor(len(addresses)) as pool:
        ended = list(pool.map(lambda address: ingest(source, f"hdfs://{address}/x", driver), addresses))
    for address, finished in zip(addresses, ended, strict=True):
        refused(finished, f"cannot reach the NameNode of hdfs://{address} (", "check the address")


@by_driver
def test_what_the_namenode_refuses(driver: str, cluster: Cluster, hdfs_root: Place, source: Path) -> None:
    folders = {name: (hdfs_root / name).make_folder() for name in ("denied", "names", "space")}
    set_quota(cluster, folders["names"], namespace=3)
    set_quota(cluster, folders["space"], namespace=1000, storagespace=20_000)
    users = {"denied": "alice"}
    with ThreadPoolExecutor(3) as pool:
        ended = {
            name: pool.submit(ingest, source, folder, driver, HADOOP_USER_NAME=users.get(name, cluster.user))
            for name, folder in folders.items()
        }
    permission = ("Permission denied: user=alice, access=WRITE", "check --hdfs-user")
    refused(ended["denied"].result(), f"{folders['denied']}/raw", *permission)
    refused(ended["names"].result(), f"{folders['names']}/raw", "quota=3", "raised: hdfs dfsadmin -setQuota")
    refused(ended["space"].result(), f"{folders['space']}/raw", "quota = 20000 B", "hdfs dfsadmin -setSpaceQuota")
    assert files(hdfs_root) == []
    if driver == NATIVE:
        set_quota(cluster, folders["space"], namespace=1000, storagespace=1 << 40)
        succeeded(ingest(source, folders["space"]))


@pytest.fixture
def alone(hadoop_alone: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    set_site(hadoop_alone, monkeypatch)
    return hadoop_alone


def admin(cluster: Cluster, *words: str) -> None:
    subprocess.run([cluster.home / "bin" / "hdfs", "dfsadmin", *words], check=True, capture_output=True, timeout=300)


def both(source: object, folder: Place) -> dict[str, Finished]:
    with ThreadPoolExecutor(2) as pool:
        ended = {driver: pool.submit(ingest, source, folder / driver, driver) for driver in (NATIVE, LIBHDFS)}
    return {driver: finished.result() for driver, finished in ended.items()}


def test_in_safe_mode(alone: Cluster, source: Path) -> None:
    folder = open_place(f"{alone.uri}/tmp/safe")
    admin(alone, "-safemode", "enter")
    try:
        for finished in both(source, folder).values():
            refused(finished, "the NameNode is in safe mode: wait for it, or: hdfs dfsadmin -safemode leave")
    finally:
        admin(alone, "-safemode", "leave")
    assert not folder.exists()


def test_no_datanode_lives(alone: Cluster, source: Path) -> None:
    """Neither for who writes nor for who reads."""
    folder = open_place(f"{alone.uri}/tmp/dead").make_folder()
    images = (folder / "images" / "a").make_folder()
    with images.filesystem.open_new((images / "1.png").path) as stream:
        stream.write((source / "a" / "000.png").read_bytes())
    alone.kill("datanode", signal.SIGKILL)
    for finished in both(source, folder).values():
        refused(finished, "no DataNode takes its blocks", "look at: hdfs dfsadmin -report")
    for driver in (NATIVE, LIBHDFS):
        reading = ingest(folder / "images", source.parent / driver, driver)
        refused(reading, f"{images}/1.png: no live DataNode serves its blocks", "look at: hdfs fsck")
    assert files(folder) == [(images / "1.png").path]
    folder.delete()

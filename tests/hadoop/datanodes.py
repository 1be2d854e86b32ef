"""More DataNodes for a cluster, as erasure coding needs them, and the policies of its folders."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

from etl.storage.place import Place
from tests.hadoop import health
from tests.hadoop.cluster import HEAP, Cluster
from tests.hadoop.configuration import LOOPBACK, named_ports
from tests.hadoop.processes import POLL_INTERVAL_S, Process, end, spawn
from tests.hadoop.state import MARK, STOP_GRACE_S

START_TIMEOUT_S = 120.0
_PORTS = {"address": "datanode", "ipc.address": "datanode_ipc", "http.address": "datanode_web"}


@contextmanager
def more_datanodes(cluster: Cluster, count: int) -> Iterator[list[Process]]:
    """So many DataNodes besides the cluster's own, while the block runs. Their data is lost with them.

    For a cluster of a test's own: of another it would be other tests' data.
    """
    processes: list[Process] = []
    try:
        for number in range(count):
            processes.append(_start(cluster, f"datanode-{number + 2}"))
        deadline = time.monotonic() + START_TIMEOUT_S
        while _live(cluster) < count + 1:
            assert time.monotonic() < deadline, f"{_live(cluster)} DataNodes; see {cluster.log('datanode-2')}"
            assert all(process.lives for process in processes), f"one ended; see {cluster.log('datanode-2')}"
            time.sleep(POLL_INTERVAL_S)
        yield processes
    finally:
        end(processes, STOP_GRACE_S)


def set_policy(cluster: Cluster, folder: Place, policy: str) -> None:
    """Have new files of the folder erasure-coded."""
    for path, operation in (("/", "ENABLEECPOLICY"), (folder.path, "SETECPOLICY")):
        query = f"op={operation}&ecpolicy={policy}&user.name={cluster.user}"
        health.put(f"{cluster.web('namenode')}/webhdfs/v1{path}?{query}")


def _start(cluster: Cluster, name: str) -> Process:
    folder = cluster.folder / name
    conf = folder / "conf"
    shutil.copytree(cluster.conf_dir, conf)
    ports = named_ports()
    given = {f"dfs.datanode.{key}": f"{LOOPBACK}:{ports[port]}" for key, port in _PORTS.items()}
    given["dfs.datanode.data.dir"] = (folder / "data").as_uri()
    text = (conf / "hdfs-site.xml").read_text()
    for key, value in given.items():
        text = re.sub(rf"(<name>{re.escape(key)}</name><value>)[^<]*", rf"\g<1>{value}", text)
    (conf / "hdfs-site.xml").write_text(text)
    environment = cluster.environment() | {
        "PATH": os.environ["PATH"],
        "HADOOP_CONF_DIR": str(conf),
        "HADOOP_LOG_DIR": str(folder),
        "HADOOP_HEAPSIZE": HEAP,
        "HADOOP_OPTS": f"-Djava.io.tmpdir={folder} -Dhadoop.root.logger=INFO,console",
        MARK: str(cluster.folder),  # so that it ends with the cluster at the latest
    }
    return spawn([str(cluster.home / "bin" / "hdfs"), "datanode"], environment, folder, cluster.log(name))


def _live(cluster: Cluster) -> int:
    url = f"{cluster.web('namenode')}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    return int(health.get(url)["beans"][0]["NumLiveDataNodes"])

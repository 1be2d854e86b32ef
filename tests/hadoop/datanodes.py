"""More DataNodes for a cluster, as erasure coding needs them, and the policies of its folders."""

from collections.abc import Iterator
from contextlib import contextmanager

from etl.storage.place import Place
from tests.hadoop import health
from tests.hadoop.cluster import Cluster
from tests.hadoop.configuration import LOOPBACK, named_ports
from tests.hadoop.processes import Process, end
from tests.hadoop.state import STOP_GRACE_S
from tests.lib.commands import wait_until


@contextmanager
def add_datanodes(cluster: Cluster, count: int) -> Iterator[list[Process]]:
    """So many DataNodes besides the cluster's own, while the block runs. Their data is lost with them.

    For a cluster of a test's own: of another it would be other tests' data.
    """
    processes: list[Process] = []
    try:
        for number in range(count):
            processes.append(_start(cluster, f"datanode-{number + 2}"))

        def are_up() -> bool:
            assert all(process.lives for process in processes), f"one ended; see {cluster.log('datanode-2')}"
            return _live(cluster) > count

        wait_until(are_up, message=lambda: f"{_live(cluster)} DataNodes; see {cluster.log('datanode-2')}")
        yield processes
    finally:
        end(processes, STOP_GRACE_S)


def set_policy(cluster: Cluster, folder: Place, policy: str) -> None:
    """Have new files of the folder erasure-coded."""
    for path, operation in (("/", "ENABLEECPOLICY"), (folder.path, "SETECPOLICY")):
        query = f"op={operation}&ecpolicy={policy}&user.name={cluster.user}"
        health.put(f"{cluster.web('namenode')}/webhdfs/v1{path}?{query}")


def _start(cluster: Cluster, name: str) -> Process:
    ports = named_ports(("address", "ipc.address", "http.address"))
    own = {key: f"{LOOPBACK}:{port}" for key, port in ports.items()}
    own["data.dir"] = (cluster.folder / name).as_uri()
    return cluster.spawn("datanode", name, *(f"-Ddfs.datanode.{key}={value}" for key, value in own.items()))


def _live(cluster: Cluster) -> int:
    url = f"{cluster.web('namenode')}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    return int(health.get(url)["beans"][0]["NumLiveDataNodes"])

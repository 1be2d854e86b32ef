"""The site files of a single-node Hadoop that starts fast and notices lost daemons soon.

What a product meets on a real site stays at Hadoop's defaults, above all what clients do: their retries, the size of
blocks, the number of attempts, speculative execution.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from tests.hadoop.distribution import JARS
from tests.hadoop.state import MARK
from train.launch import free_ports

LOOPBACK = "127.0.0.1"
PROXIED = "127.0.0.3"  # where clients that go by host names look for the DataNode (proxy.py)
PORTS = (
    *("namenode", "namenode_web", "datanode", "datanode_ipc", "datanode_web", "resourcemanager", "resourcemanager_web"),
    *("resourcemanager_scheduler", "resourcemanager_tracker", "resourcemanager_admin"),
    *("nodemanager", "nodemanager_localizer", "nodemanager_web", "shuffle"),
)
LOST_AFTER_MS = 20_000
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true"


def named_ports(names: Sequence[str] = PORTS) -> dict[str, int]:
    """A free port for each of the names; they may be taken before they are used, so whoever uses them tries again."""
    return dict(zip(names, free_ports(len(names)), strict=True))


def write_configuration(conf_dir: Path, folder: Path, home: Path, ports: Mapping[str, int]) -> None:
    """Write all site files of the cluster in ``folder``."""
    conf_dir.mkdir(parents=True, exist_ok=True)
    at = {name: f"{LOOPBACK}:{port}" for name, port in ports.items()}
    classpath = f"{conf_dir},{home / JARS}/*"
    write_site(conf_dir / "core-site.xml", _core(folder, at))
    write_site(conf_dir / "hdfs-site.xml", _hdfs(folder, at))
    write_site(conf_dir / "yarn-site.xml", _resource_manager(folder, at) | _node_manager(folder, at, classpath))
    write_site(conf_dir / "mapred-site.xml", _mapreduce(classpath, ports["shuffle"]))
    write_site(conf_dir / "capacity-scheduler.xml", _scheduler())
    (conf_dir / "log4j.properties").write_bytes((home / "etc" / "hadoop" / "log4j.properties").read_bytes())


def write_site(path: Path, properties: Mapping[str, object]) -> None:
    """Write one site file."""
    lines = [
        f"  <property><name>{name}</name><value>{escape(_text(value))}</value></property>\n"
        for name, value in properties.items()
    ]
    path.write_text('<?xml version="1.0"?>\n<configuration>\n' + "".join(lines) + "</configuration>\n")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _core(folder: Path, at: Mapping[str, str]) -> dict[str, object]:
    return {
        "fs.defaultFS": f"hdfs://{at['namenode']}",
        "hadoop.tmp.dir": folder / "tmp",
        # ten seconds in all, as by default, but in small steps: the daemons start together and wait for one another
        "ipc.client.connect.retry.interval": 200,
        "ipc.client.connect.max.retries": 50,
    }


def _hdfs(folder: Path, at: Mapping[str, str]) -> dict[str, object]:
    return {
        "dfs.namenode.name.dir": (folder / "name").as_uri(),
        "dfs.datanode.data.dir": (folder / "data").as_uri(),
        "dfs.namenode.http-address": at["namenode_web"],
        "dfs.datanode.address": at["datanode"],
        "dfs.datanode.hostname": PROXIED,
        "dfs.datanode.ipc.address": at["datanode_ipc"],
        "dfs.datanode.http.address": at["datanode_web"],
        "dfs.replication": 1,
        "dfs.namenode.fs-limits.min-block-size": 4096,  # for tests of files of many blocks
        "dfs.namenode.safemode.extension": 0,
        "dfs.namenode.safemode.min.datanodes": 1,
        "dfs.namenode.edits.noeditlogchannelflush": True,  # processes are killed in tests, machines are not
        # lost after 2 x recheck + 10 x heartbeat
        "dfs.heartbeat.interval": 1,
        "dfs.namenode.heartbeat.recheck-interval": (LOST_AFTER_MS - 10_000) // 2,
        "dfs.namenode.stale.datanode.interval": LOST_AFTER_MS // 2,
        # twelve seconds in all, as by default, but in small steps: a block is reported a moment after it was written
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 25,
        "dfs.client.block.write.locateFollowingBlock.retries": 9,
        "dfs.client.block.write.replace-datanode-on-failure.enable": False,  # there is no other
    }


def _resource_manager(folder: Path, at: Mapping[str, str]) -> dict[str, object]:
    manager = "yarn.resourcemanager"
    return {
        f"{manager}.hostname": at["resourcemanager"].partition(":")[0],
        f"{manager}.address": at["resourcemanager"],
        f"{manager}.scheduler.address": at["resourcemanager_scheduler"],
        f"{manager}.resource-tracker.address": at["resourcemanager_tracker"],
        f"{manager}.admin.address": at["resourcemanager_admin"],
        f"{manager}.webapp.address": at["resourcemanager_web"],
        f"{manager}.nodemanagers.heartbeat-interval-ms": 250,
        f"{manager}.connect.retry-interval.ms": 300,
        f"{manager}.connect.max-wait.ms": 60_000,
        f"{manager}.am.max-attempts": 4,
        # applications outlive a ResourceManager that is started again
        f"{manager}.recovery.enabled": True,
        f"{manager}.store.class": "org.apache.hadoop.yarn.server.resourcemanager.recovery.LeveldbRMStateStore",
        f"{manager}.leveldb-state-store.path": folder / "yarn" / "resourcemanager",
        f"{manager}.work-preserving-recovery.scheduling-wait-ms": 1000,
        "yarn.nm.liveness-monitor.expiry-interval-ms": LOST_AFTER_MS,
        # one that dies is noticed at once; one that starts on a busy machine takes its time
        "yarn.am.liveness-monitor.expiry-interval-ms": 6 * LOST_AFTER_MS,
        "mapreduce.am.max-attempts": 4,
        "yarn.scheduler.minimum-allocation-mb": 128,
        "yarn.scheduler.maximum-allocation-mb": 6144,
        "yarn.cluster.max-application-priority": 10,
    }


def _node_manager(folder: Path, at: Mapping[str, str], classpath: str) -> dict[str, object]:
    node = "yarn.nodemanager"
    return {
        f"{node}.address": at["nodemanager"],
        f"{node}.localizer.address": at["nodemanager_localizer"],
        f"{node}.webapp.address": at["nodemanager_web"],
        f"{node}.local-dirs": folder / "yarn" / "local",
        f"{node}.log-dirs": folder / "logs" / "userlogs",
        f"{node}.recovery.enabled": True,
        f"{node}.recovery.dir": folder / "yarn" / "nodemanager",
        f"{node}.admin-env": f"MALLOC_ARENA_MAX=$MALLOC_ARENA_MAX,{MARK}={folder}",
        f"{node}.aux-services": "mapreduce_shuffle",
        f"{node}.resource.memory-mb": 6144,
        f"{node}.vmem-check-enabled": False,
        f"{node}.resource.memory.enforced": False,  # by cgroups, that is, without which nothing would be enforced
        f"{node}.container-monitor.interval-ms": 500,
        f"{node}.process-kill-wait.ms": 2000,
        # else no container starts on a disk that is 90% full; the check at the start is made without the checker, too
        f"{node}.disk-health-checker.enable": False,
        f"{node}.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
        "yarn.application.classpath": classpath,
    }


def _mapreduce(classpath: str, shuffle_port: int) -> dict[str, object]:
    return {
        "mapreduce.framework.name": "yarn",
        "mapreduce.application.classpath": classpath,
        "mapreduce.shuffle.port": shuffle_port,
        "mapreduce.jobhistory.address": "",  # there is none: do not wait for it
        "mapreduce.map.memory.mb": 512,
        "mapreduce.map.java.opts": "-Xmx300m",
        "mapreduce.reduce.memory.mb": 512,
        "mapreduce.reduce.java.opts": "-Xmx300m",
        "mapreduce.admin.map.child.java.opts": QUICK_JVM,
        "mapreduce.admin.reduce.child.java.opts": QUICK_JVM,
        "yarn.app.mapreduce.am.resource.mb": 512,
        "yarn.app.mapreduce.am.command-opts": "-Xmx350m",
        "yarn.app.mapreduce.am.admin-command-opts": QUICK_JVM,
        "yarn.app.mapreduce.am.scheduler.heartbeat.interval-ms": 250,
        "mapreduce.task.timeout": 60_000,
        "mapreduce.client.progressmonitor.pollinterval": 250,
        "mapreduce.client.completion.pollinterval": 250,
    }


def _scheduler() -> dict[str, object]:
    root = "yarn.scheduler.capacity.root"
    return {
        "yarn.scheduler.capacity.maximum-am-resource-percent": 0.5,
        "yarn.scheduler.capacity.node-locality-delay": -1,  # there is one node
        f"{root}.queues": "default,nightly",
        f"{root}.default.capacity": 70,
        f"{root}.default.maximum-capacity": 100,
        f"{root}.default.user-limit-factor": 10,  # one user may have it all
        f"{root}.nightly.capacity": 30,
        f"{root}.nightly.maximum-capacity": 100,
        f"{root}.nightly.user-limit-factor": 10,
    }

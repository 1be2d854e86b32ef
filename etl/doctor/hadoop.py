"""The checks of a Hadoop client, of the place for datasets, of YARN, and of the Python of its tasks."""

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

from etl.doctor.check import WARNING, Check, Context, Skipped, run, run_python
from etl.errors import EnvironmentFailure, explain
from etl.hadoop.site_config import (
    SITE_FILES,
    configuration_folder,
    hadoop_command,
    java_home,
    site_configuration,
    streaming_jar,
)
from etl.hadoop.yarn_api import ResourceManager, has_queue
from etl.storage.hdfs_settings import (
    DEFAULT_PORT,
    DRIVER_VARIABLE,
    LIBHDFS,
    NATIVE,
    default_filesystem,
    split_authority,
)
from etl.storage.place import open_place

CONNECT_TIMEOUT_S = 5.0
IMPORT_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 60.0
REMOVE_TIMEOUT_S = 10.0

_FOR_JOBS = "not set up; only needed for -r hadoop"
_PROBE = ("-m", "etl.doctor.probe")


def checks(context: Context) -> Iterator[Check]:
    """The checks in their order; what depends on a service is checked if that answers.

    A missing Java is a failure if there is a site, or HDFS is reached by libhdfs; hdfs-native needs none.
    """
    has_site, is_on_hdfs = context.has_site, context.is_on_hdfs
    needs_java = has_site or (is_on_hdfs and context.settings.driver == LIBHDFS)
    yield "hadoop", "configuration", _configuration
    yield "hadoop", "Java", lambda: _or_skipped(lambda: str(java_home()), needs_java)
    yield "hadoop", "hadoop program", lambda: _or_skipped(hadoop_command, has_site)
    if is_on_hdfs:
        yield "storage", "NameNode", lambda: _namenode(context)
    if not is_on_hdfs or context.has_passed("NameNode"):
        yield "storage", "files", lambda: _files(context)
    yield "yarn", "ResourceManager", lambda: _resource_manager(context)
    if context.has_passed("ResourceManager"):
        yield "yarn", "nodes", _nodes
        yield "yarn", "queues", lambda: _queues(context.queue)
    yield "yarn", "streaming jar", lambda: _or_skipped(lambda: str(streaming_jar()), has_site)
    if context.python_bin is not None:
        yield "tasks", "imports", lambda: _imports(str(context.python_bin))


def _or_skipped(find: Callable[[], str], is_needed: bool) -> str:
    try:
        return find()
    except EnvironmentFailure:
        if is_needed:
            raise
        raise Skipped(f"{_FOR_JOBS} and --hdfs-driver libhdfs") from None


def _configuration() -> str:
    folder = configuration_folder()
    if folder is None:
        raise Skipped("HADOOP_CONF_DIR is not set; only needed for -r hadoop, and for places without a host")
    default = default_filesystem(site_configuration())
    files = [name for name in SITE_FILES if (folder / name).is_file()]
    if not files:
        raise EnvironmentFailure(
            f"{folder} has none of {', '.join(SITE_FILES)}; set HADOOP_CONF_DIR to the cluster's configuration"
        )
    text = f"{folder} with {', '.join(files)}; fs.defaultFS {default or 'is not set'}"
    if not default:
        raise Skipped(f"{text}: hdfs:/// and -r hadoop need it", WARNING)
    return text


def _namenode(context: Context) -> str:
    answers, silent = [], []
    for address in _namenodes(context.uri):
        host, port = split_authority(address)
        try:
            socket.create_connection((host.strip("[]"), int(port or DEFAULT_PORT)), CONNECT_TIMEOUT_S).close()
            answers.append(f"{address} answers")
        except OSError as error:
            reason = (explain(error) or (0, str(error)))[1].partition(":")[0]
            silent.append(f"{address} does not answer ({reason})")
    if not answers:
        raise EnvironmentFailure(
            f"{'; '.join(silent)}: check the address (fs.defaultFS of core-site.xml), that HDFS is up, and that"
            " no firewall is between"
        )
    if silent:
        raise Skipped(f"{'; '.join([*answers, *silent])}: look after that one", WARNING)
    return "; ".join(answers)


def _namenodes(uri: str) -> list[str]:
    """The addresses of the place's NameNodes: those of a nameservice by the site's configuration, else its own."""
    authority = open_place(uri).uri.removeprefix("hdfs://").partition("/")[0]
    site = site_configuration()
    nodes = site.get(f"dfs.ha.namenodes.{authority}", "").split(",")
    keys = [f"dfs.namenode.rpc-address.{authority}.{name.strip()}" for name in nodes]
    return [site[key] for key in keys if key in site] or [authority]


def _files(context: Context) -> str:
    """Use the place in a process that may crash or hang; nothing is left of it."""
    place = open_place(context.uri).uri
    words = [place, f".ringslice-doctor-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"]
    remedy = f"check that {place} is the address of the storage, and that it works"
    if context.settings.driver == LIBHDFS:
        remedy += "; look at JAVA_HOME, CLASSPATH and ARROW_LIBHDFS_DIR, or take --hdfs-driver native"
    try:
        return run_python([*_PROBE, "try", *words], PROBE_TIMEOUT_S, remedy)
    except BaseException:  # it may have been killed, or we were interrupted
        with suppress(EnvironmentFailure):
            run_python([*_PROBE, "remove", *words], REMOVE_TIMEOUT_S, remedy, **{DRIVER_VARIABLE: NATIVE})
        raise


def _resource_manager(context: Context) -> str:
    if context.queue is None and not any(name.startswith("yarn.resourcemanager.") for name in site_configuration()):
        raise Skipped(_FOR_JOBS)
    manager = ResourceManager.of_site()
    try:
        facts = manager.information()
        version, state = facts["hadoopVersion"], facts["state"].lower()
    except (ValueError, LookupError, TypeError):
        raise EnvironmentFailure(
            f"{manager} is not a ResourceManager; correct yarn.resourcemanager.webapp.address of yarn-site.xml"
        ) from None
    if state != "started":
        raise EnvironmentFailure(f"{manager} is {state}; start it, or look at its log")
    return f"{manager}, Hadoop {version}, {state}"


def _nodes() -> str:
    counts = ResourceManager.of_site().metrics()
    free, total = counts["availableMB"] / 1024, counts["totalMB"] / 1024
    text = f"{counts['activeNodes']} active, {free:.1f} of {total:.1f} GiB of memory free"
    text += f", {counts['unhealthyNodes']} unhealthy" if counts["unhealthyNodes"] else ""
    if not counts["activeNodes"]:
        raise EnvironmentFailure(f"{text}: no job can run; look at: yarn node -list -all")
    return text


def _queues(wanted: str | None) -> str:
    queues = ResourceManager.of_site().queues()
    if not has_queue(queues, wanted):
        raise EnvironmentFailure(f"there is no queue {wanted!r}; give --queue one of: {', '.join(queues)}")
    return ", ".join(queues) or "not listed by this scheduler"


def _imports(python_bin: str) -> str:
    """Try the Python of the containers on this machine."""
    python = shutil.which(python_bin)
    if python is None:
        raise EnvironmentFailure(f"--python-bin {python_bin}: no such program; give its path on the nodes")
    python, words = os.path.abspath(python), ["-c", "import mapreduce.normalize, mapreduce.shard"]
    run([python, *words], IMPORT_TIMEOUT_S, f"pip install ringslice with {python}", {}, "/")  # nothing of ours
    same = " (this one)" if python == sys.executable else ""
    return f"{python}{same} imports the jobs; every node needs the same, at the same path"

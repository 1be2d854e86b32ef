"""``ringslice doctor``: all checks by group: Python, Hadoop, the place for datasets, YARN, its tasks, and training."""

import json
import os
import secrets
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata

from etl.doctor.check import OK, WARNING, Check, Context, SkippedCheck, run, run_python
from etl.errors import EnvironmentFailure, reason_of
from etl.hadoop.site_config import (
    SITE_FILES,
    SITE_VARIABLES,
    configuration_folder,
    hadoop_command,
    java_home,
    site_configuration,
    streaming_jar,
)
from etl.hadoop.yarn_api import ResourceManager
from etl.storage.hdfs_settings import (
    DEFAULT_PORT,
    DRIVER_VARIABLE,
    LIBHDFS,
    NATIVE,
    default_filesystem,
    split_authority,
)
from etl.storage.place import open_place

PACKAGES = ("ringslice", "pyarrow", "mrjob", "hdfs-native", "numpy", "pillow")
TENSORFLOWS = ("tensorflow", "tensorflow-cpu")
IMPORT_TIMEOUT_S = 90.0  # TensorFlow from a cold disk
GPU_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 60.0
REMOVE_TIMEOUT_S = 10.0

_FOR_JOBS = "not set up; only needed for -r hadoop"
_PROBE = ("-m", "etl.doctor.probe")
_WITHOUT_GPU = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
_INSTALL = "run: make install"
_BUILD = """
import json, horovod.tensorflow as hvd
print(json.dumps({"Gloo": bool(hvd.gloo_built()), "NCCL": bool(hvd.nccl_built()), "MPI": bool(hvd.mpi_built())}))
"""
_NATIVE_OP = "from train.tf_backend.records_op import why_not_native; print(why_not_native() or '')"


GROUPS = ("python", "hadoop", "storage", "yarn", "tasks", "training")


def checks_of(context: Context) -> Iterator[Check]:
    """The checks in their order; what depends on a service is checked if that answers.

    A missing Java is a failure if there is a site, or HDFS is reached by libhdfs; hdfs-native needs none.
    """
    built = dict[str, bool]()
    has_site = any(os.environ.get(name) for name in SITE_VARIABLES)
    is_on_hdfs = context.uri.lower().startswith("hdfs:")
    needs_java = has_site or (is_on_hdfs and context.settings.driver == LIBHDFS)
    yield "python", "version", lambda: f"{sys.version.split()[0]} ({sys.executable})"
    versions = (f"{name} {_version(name) or 'of unknown version'}" for name in PACKAGES)
    yield "python", "packages", lambda: ", ".join(versions)
    yield "hadoop", "configuration", _configuration
    yield "hadoop", "Java", lambda: _or_skipped(lambda: str(java_home()), needs_java)
    yield "hadoop", "hadoop program", lambda: _or_skipped(hadoop_command, has_site)
    if is_on_hdfs:
        yield "storage", "NameNode", lambda: _namenode(context)
    if not is_on_hdfs or context.states.get("NameNode") in (OK, WARNING):
        yield "storage", "files", lambda: _files(context)
    yield "yarn", "ResourceManager", lambda: _resource_manager(context)
    if context.states.get("ResourceManager") in (OK, WARNING):
        yield "yarn", "nodes", _nodes
        yield "yarn", "queues", lambda: _queues(context.queue)
    yield "yarn", "streaming jar", lambda: _or_skipped(lambda: str(streaming_jar()), has_site)
    if context.python_bin is not None:
        yield "tasks", "imports", lambda: _imports(str(context.python_bin))
    yield "training", "Horovod", lambda: _horovod(built)
    yield "training", "native op", _native_op
    yield "training", "GPUs", lambda: _gpus(built)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _or_skipped(find: Callable[[], str], is_needed: bool) -> str:
    try:
        return find()
    except EnvironmentFailure:
        if is_needed:
            raise
        raise SkippedCheck(f"{_FOR_JOBS} and --hdfs-driver libhdfs") from None


def _configuration() -> str:
    folder = configuration_folder()
    if folder is None:
        raise SkippedCheck("HADOOP_CONF_DIR is not set; only needed for -r hadoop, and for places without a host")
    default = default_filesystem(site_configuration())
    files = [name for name in SITE_FILES if (folder / name).is_file()]
    if not files:
        raise EnvironmentFailure(
            f"{folder} has none of {', '.join(SITE_FILES)}; set HADOOP_CONF_DIR to the cluster's configuration"
        )
    text = f"{folder} with {', '.join(files)}; fs.defaultFS {default or 'is not set'}"
    if not default:
        raise SkippedCheck(f"{text}: hdfs:/// and -r hadoop need it", WARNING)
    return text


def _namenode(context: Context) -> str:
    answers, silent = [], []
    for address in _namenodes(context.uri):
        host, port = split_authority(address)
        try:
            socket.create_connection((host.strip("[]"), int(port or DEFAULT_PORT)), CONNECT_TIMEOUT_S).close()
            answers.append(f"{address} answers")
        except OSError as error:
            reason = reason_of(error).partition(":")[0]
            silent.append(f"{address} does not answer ({reason})")
    if not answers:
        raise EnvironmentFailure(
            f"{'; '.join(silent)}: check the address (fs.defaultFS of core-site.xml), that HDFS is up, and that"
            " no firewall is between"
        )
    if silent:
        raise SkippedCheck(f"{'; '.join([*answers, *silent])}: look after that one", WARNING)
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
        raise SkippedCheck(_FOR_JOBS)
    manager = ResourceManager.of_site()
    try:
        facts = manager.information()
        version, state = facts["hadoopVersion"], facts["state"].lower()
    except (LookupError, TypeError):
        raise manager.refusal() from None
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
    return ", ".join(ResourceManager.of_site().queues(wanted)) or "not listed by this scheduler"


def _imports(python_bin: str) -> str:
    """Try the Python of the containers on this machine."""
    python = shutil.which(python_bin)
    if python is None:
        raise EnvironmentFailure(f"--python-bin {python_bin}: no such program; give its path on the nodes")
    python, words = os.path.abspath(python), ["-c", "import mapreduce.normalize, mapreduce.shard, mapreduce.verify"]
    run([python, *words], IMPORT_TIMEOUT_S, f"pip install ringslice with {python}", {}, "/")  # nothing of ours
    same = " (this one)" if python == sys.executable else ""
    return f"{python}{same} imports the jobs; every node needs the same, at the same path"


def _horovod(built: dict[str, bool]) -> str:
    horovod = _version("horovod")
    if horovod is None:
        raise SkippedCheck(f"not installed; only needed to train ({_INSTALL})")
    output = run_python(["-c", _BUILD], IMPORT_TIMEOUT_S, _INSTALL, **_WITHOUT_GPU)
    built |= json.loads(output.splitlines()[-1])
    ways = " and ".join(name for name, is_built in built.items() if is_built)
    if not ways:
        raise EnvironmentFailure(f"{horovod}, built without Gloo, NCCL and MPI: ranks cannot communicate; {_INSTALL}")
    return f"{horovod}, built with {ways}"


def _native_op() -> str:
    if not any(map(_version, TENSORFLOWS)):
        raise SkippedCheck(f"not built, because there is no TensorFlow; only needed to train ({_INSTALL})")
    if reason := run_python(["-c", _NATIVE_OP], IMPORT_TIMEOUT_S, _INSTALL, **_WITHOUT_GPU).strip():
        raise SkippedCheck(f"{reason}: the trainer's reader works without it, more slowly; {_INSTALL}", WARNING)
    return "the reader's native op is built for this TensorFlow"


def _gpus(built: dict[str, bool]) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise SkippedCheck("no nvidia-smi, so no NVIDIA GPU; training uses the CPU")
    words = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    gpus = Counter(run(words, GPU_TIMEOUT_S, "look at the driver").splitlines())
    text = "; ".join(f"{number} of {gpu}" for gpu, number in gpus.items()) or "none"
    if gpus and built and not built["NCCL"]:
        raise SkippedCheck(
            f"{text}; Horovod is built without NCCL, so gradients go through the CPU; {_INSTALL} GPU=1", WARNING
        )
    return text

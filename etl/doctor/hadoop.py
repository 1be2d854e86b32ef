"""The checks of a Hadoop client and of a cluster: configuration, Java, libhdfs, YARN, and the Python of its tasks."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import TypeVar

from etl.doctor.check import NOTE, WARNING, Checks, Context, Skipped, run, run_python
from etl.doctor.storage import PROBE
from etl.errors import EnvironmentFailure
from etl.hadoop.site_config import (
    SITE_FILES,
    configuration_folder,
    hadoop_command,
    java_home,
    libhdfs_folder,
    streaming_jar,
)
from etl.hadoop.yarn_api import ResourceManager
from etl.storage.hdfs_settings import LIBHDFS, default_filesystem, nameservices

CLIENT, YARN, TASKS = "Hadoop", "YARN", "tasks' Python"
JAVA_TIMEOUT_S = 20.0
JVM_TIMEOUT_S = 60.0
IMPORT_TIMEOUT_S = 30.0
ARCHIVE_TIMEOUT_S = 180.0  # it is made first, unless it is in the cache
JAVA_VERSIONS = (8, 11, 17)

_JAVA_CAUSE = re.compile(r"^(?:Caused by: |Error: )?((?:[\w.]+(?:Exception|Error): |Unrecognized VM).*)$", re.MULTILINE)
_FOR_JOBS = "not set up; only needed for -r hadoop"
_FOR_JAVA = f"{_FOR_JOBS} and --hdfs-driver libhdfs"
_IMPORT = "import mapreduce.normalize, mapreduce.shard"

Answer = TypeVar("Answer")


def client_checks(context: Context) -> Checks:
    """libhdfs, with its JVM and its jars, is only checked if there is a Java, or one is needed."""
    yield CLIENT, "configuration", lambda: _configuration(context)
    yield CLIENT, "Java", lambda: _java(context)
    yield CLIENT, "hadoop program", lambda: _or_skipped(hadoop_command, context.has_site, _FOR_JAVA)
    if context.needs_java or context.has_passed("Java"):
        yield CLIENT, "libhdfs", lambda: _libhdfs(context)


def yarn_checks(context: Context) -> Checks:
    """Nodes and queues are checked if the ResourceManager answers."""
    yield YARN, "ResourceManager", lambda: _resource_manager(context)
    if context.has_passed("ResourceManager"):
        yield YARN, "nodes", _nodes
        yield YARN, "queues", lambda: _queues(context.queue)
    yield YARN, "streaming jar", lambda: _or_skipped(lambda: str(streaming_jar()), context.has_site, _FOR_JOBS)


def task_checks(context: Context) -> Checks:
    """The Python of the containers, tried on this machine."""
    given = context.python_bin
    yield TASKS, "imports", lambda: _given_python(given) if given else _archive(context)


def _or_skipped(find: Callable[[], str], is_needed: bool, reason: str) -> str:
    try:
        return find()
    except EnvironmentFailure:
        if is_needed:
            raise
        raise Skipped(reason) from None


def _configuration(context: Context) -> str:
    if context.site_problem:
        raise EnvironmentFailure(context.site_problem)
    folder = configuration_folder()
    if folder is None:
        if context.has_site:
            raise EnvironmentFailure("HADOOP_HOME has no etc/hadoop; set HADOOP_CONF_DIR to the site's configuration")
        raise Skipped(f"HADOOP_CONF_DIR is {_FOR_JAVA}, and for places without a host such as hdfs:///datasets")
    files = [name for name in SITE_FILES if (folder / name).is_file()]
    if not files:
        raise EnvironmentFailure(
            f"{folder} has none of {', '.join(SITE_FILES)}; set HADOOP_CONF_DIR to the cluster's configuration"
        )
    default = default_filesystem(context.site)
    facts = [f"{folder} with {', '.join(files)}", f"fs.defaultFS {default}" if default else "no fs.defaultFS"]
    text = "; ".join([*facts, *(f"nameservice {name}" for name in nameservices(context.site))])
    if not default:
        raise Skipped(f"{text}: hdfs:/// and -r hadoop need it", WARNING)
    return text


def _java(context: Context) -> str:
    home = _or_skipped(lambda: str(java_home()), context.needs_java, _FOR_JAVA)
    result = run([f"{home}/bin/java", "-version"], JAVA_TIMEOUT_S, os.environ)
    if result.status:
        raise EnvironmentFailure(f"{home}/bin/java {result.reason}; set JAVA_HOME to a Java 8, 11 or 17")
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', result.errors + result.output)
    text = f"{found[1] if found else 'an unknown version'} in {home}"
    if found is None or int(found[2]) not in JAVA_VERSIONS:
        raise Skipped(f"{text}; Hadoop 3 is made for 8, 11 or 17: set JAVA_HOME to one if jobs fail", WARNING)
    return text


def _libhdfs(context: Context) -> str:
    """Load it and start its JVM, in a process that may crash."""
    try:
        folder = libhdfs_folder()
    except EnvironmentFailure as error:
        if context.settings.driver == LIBHDFS or os.environ.get("ARROW_LIBHDFS_DIR"):
            raise
        raise Skipped(f"{error}; only needed for that driver", WARNING if context.has_site else NOTE) from None
    if not context.has_passed("Java"):
        raise Skipped(f"{folder}/libhdfs.so was not tried, because Java comes first")
    context.require_site()
    result = run_python([*PROBE, "libhdfs"], JVM_TIMEOUT_S)
    if result.status < 0:
        raise EnvironmentFailure(
            f"{folder}/libhdfs.so {result.reason} when it was loaded to start a JVM; it may be damaged or made for"
            " another machine or Java: take the one of the Hadoop that you use, set ARROW_LIBHDFS_DIR, and look at"
            " JAVA_HOME (or take --hdfs-driver native)"
        )
    if result.status:
        causes = [cause for cause in _JAVA_CAUSE.findall(result.errors) if not cause.startswith("etl.")]
        raise EnvironmentFailure(
            f"{': '.join([result.reason, *causes[:1]])}; look at JAVA_HOME, CLASSPATH and LIBHDFS_OPTS (or take"
            " --hdfs-driver native)"
        )
    return f"{folder}: its JVM starts"


def _ask(question: Callable[[ResourceManager], Answer]) -> Answer:
    manager = ResourceManager.of_site()
    try:
        return question(manager)
    except (ValueError, LookupError, TypeError):
        raise EnvironmentFailure(
            f"what answers at {manager} is not a ResourceManager; check yarn.resourcemanager.webapp.address of"
            " yarn-site.xml under HADOOP_CONF_DIR"
        ) from None


def _resource_manager(context: Context) -> str:
    context.require_site()
    if context.queue is None and not any(name.startswith("yarn.resourcemanager.") for name in context.site):
        raise Skipped(_FOR_JOBS)

    def describe(manager: ResourceManager) -> str:
        facts = manager.information()
        state = str(facts["state"]).lower()
        if state != "started":
            raise EnvironmentFailure(f"{manager} is {state}; wait until it has started")
        return f"{manager}, Hadoop {facts['hadoopVersion']}, {state} ({str(facts.get('haState', 'active')).lower()})"

    return _ask(describe)


def _nodes() -> str:
    counts = _ask(lambda manager: manager.metrics())
    free, total = counts["availableMB"] / 1024, counts["totalMB"] / 1024
    text = f"{counts['activeNodes']} active, {free:.1f} of {total:.1f} GiB of memory free"
    lost = {word: counts.get(f"{word}Nodes", 0) for word in ("unhealthy", "lost")}
    text += "".join(f", {count} {word}" for word, count in lost.items() if count)
    if not counts["activeNodes"]:
        raise EnvironmentFailure(f"{text}: no job can run; look at: yarn node -list -all")
    if lost["unhealthy"]:
        raise Skipped(f"{text}; look at: yarn node -list -all", WARNING)
    return text


def _queues(wanted: str | None) -> str:
    queues = _ask(lambda manager: manager.queues())
    if wanted is None or queues.has(wanted):
        return str(queues)
    if queues.may_make:
        raise Skipped(f"{queues}; FairScheduler makes {wanted!r} when a job asks for it, if its rules let it", WARNING)
    raise EnvironmentFailure(f"there is no queue {wanted!r}; give --queue one of: {queues}")


def _archive(context: Context) -> str:
    if not context.has_site:
        raise Skipped(_FOR_JOBS)
    result = run_python(["-m", "mapreduce.jobs.python_archive", "--check"], ARCHIVE_TIMEOUT_S)
    if result.status:
        raise EnvironmentFailure(f"{result.reason} (or give --python-bin, a Python of the nodes' own)")
    return result.output


def _given_python(given: str) -> str:
    python = shutil.which(given)
    if python is None:
        raise EnvironmentFailure(f"--python-bin {given}: no such program on this machine; give its path on the nodes")
    python = os.path.abspath(python)
    result = run([python, "-c", _IMPORT], IMPORT_TIMEOUT_S, {}, cwd="/")  # as in a container: nothing of ours
    if result.status:
        remedy = f"pip install ringslice with {python}"
        raise EnvironmentFailure(f"{python} cannot import what tasks need ({result.reason}); {remedy}")
    same = " (this one)" if python == sys.executable else ""
    return f"{python}{same} imports the jobs; every node needs the same, at the same path"

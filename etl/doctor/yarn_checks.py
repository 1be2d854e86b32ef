"""The checks of a cluster that jobs are to run on: the ResourceManager, its queues, and the tasks' Python."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

from etl.doctor.check import WARNING, Check, Notice
from etl.doctor.child import call_within, run_python, run_within
from etl.doctor.context import Surroundings
from etl.errors import EnvironmentFailure
from etl.hadoop.site_config import streaming_jar
from etl.hadoop.yarn_api import ResourceManager

YARN, TASKS = "YARN", "tasks' Python"
ASK_TIMEOUT_S = 20.0
IMPORT_TIMEOUT_S = 30.0
ARCHIVE_TIMEOUT_S = 180.0  # made first, where it is not in the cache

_NEEDED_FOR = "not set up; only needed for -r hadoop"
_IMPORT = "import mapreduce.normalize, mapreduce.shard"

Result = TypeVar("Result")


def checks(around: Surroundings) -> Iterator[Check]:
    """The cluster; its nodes and queues are looked at where the ResourceManager answers."""
    yield (answers := Check(YARN, "ResourceManager", lambda: _resource_manager(around)))
    if answers.passed:
        yield Check(YARN, "nodes", _nodes)
        yield Check(YARN, "queues", lambda: _queues(around.queue))
    yield Check(YARN, "streaming jar", lambda: _streaming_jar(around))


def python_checks(around: Surroundings) -> Iterator[Check]:
    """The Python of the containers, tried on this machine."""
    yield Check(TASKS, "imports", lambda: _given_python(around.python_bin) if around.python_bin else _archive(around))


def _ask(question: Callable[[ResourceManager], Result]) -> Result:
    manager = ResourceManager.of_site()
    try:
        return call_within(ASK_TIMEOUT_S, lambda: question(manager))
    except (ValueError, LookupError, TypeError):
        raise EnvironmentFailure(
            f"what answers at {manager} is no ResourceManager; check yarn.resourcemanager.webapp.address of"
            " yarn-site.xml under HADOOP_CONF_DIR"
        ) from None


def _resource_manager(around: Surroundings) -> str:
    around.require_site_configuration()
    if around.queue is None and not any(name.startswith("yarn.resourcemanager.") for name in around.site):
        raise Notice(_NEEDED_FOR)

    def tell(manager: ResourceManager) -> str:
        about = manager.information()
        state = str(about["state"]).lower()
        if state != "started":
            raise EnvironmentFailure(f"{manager} is {state}; wait until it has started")
        return f"{manager}, Hadoop {about['hadoopVersion']}, {state} ({str(about.get('haState', 'active')).lower()})"

    return _ask(tell)


def _nodes() -> str:
    counts = _ask(lambda manager: manager.metrics())
    free, total = counts["availableMB"] / 1024, counts["totalMB"] / 1024
    told = f"{counts['activeNodes']} active, {free:.1f} of {total:.1f} GiB of memory free"
    lost = {word: counts.get(f"{word}Nodes", 0) for word in ("unhealthy", "lost")}
    told += "".join(f", {count} {word}" for word, count in lost.items() if count)
    if not counts["activeNodes"]:
        raise EnvironmentFailure(f"{told}: no job can run; look at: yarn node -list -all")
    if lost["unhealthy"]:
        raise Notice(f"{told}; look at: yarn node -list -all", WARNING)
    return told


def _queues(wanted: str | None) -> str:
    queues = _ask(lambda manager: manager.queues())
    if wanted is None or queues.has(wanted):
        return str(queues)
    if queues.may_make:
        raise Notice(f"{queues}; FairScheduler makes {wanted!r} when a job asks for it, if its rules let it", WARNING)
    raise EnvironmentFailure(f"there is no queue {wanted!r}; give --queue one of: {queues}")


def _streaming_jar(around: Surroundings) -> str:
    try:
        return str(call_within(ASK_TIMEOUT_S, streaming_jar))
    except EnvironmentFailure:
        if around.has_site:
            raise
        raise Notice(_NEEDED_FOR) from None


def _archive(around: Surroundings) -> str:
    if not around.has_site:
        raise Notice(_NEEDED_FOR)
    ended = run_python(ARCHIVE_TIMEOUT_S, ["-m", "mapreduce.jobs.python_archive", "--check"])
    if ended.status or ended.timeout_s is not None:
        raise EnvironmentFailure(f"{ended.complaint} (or give --python-bin, a Python of the nodes' own)")
    return ended.output.strip()


def _given_python(given: str) -> str:
    python = shutil.which(given)
    if python is None:
        raise EnvironmentFailure(f"--python-bin {given}: no such program on this machine; give its path on the nodes")
    python = os.path.abspath(python)
    ended = run_within(IMPORT_TIMEOUT_S, [python, "-c", _IMPORT], {}, cwd="/")  # as in a container: nothing of ours
    if ended.status or ended.timeout_s is not None:
        source = f"pip install ringslice with {python}"
        raise EnvironmentFailure(f"{python} cannot import what tasks need ({ended.complaint}); {source}")
    same = " (this one)" if python == sys.executable else ""
    return f"{python}{same} imports the jobs; every node needs the same, at the same path"

"""The processes that ``$TF_CONFIG`` names, as tf.distribute has it. Pure.

Format: https://www.tensorflow.org/guide/distributed_training, "Setting up the TF_CONFIG environment variable".
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from etl.errors import UsageError

CHIEF, WORKER, SERVER = "chief", "worker", "ps"
WITH_SERVERS = (CHIEF, WORKER, SERVER)
WORKERS, SERVERS = "several workers", "parameter servers"  # what `several_in` finds
EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
EXAMPLE_WITH_SERVERS = (
    '{"cluster": {"chief": ["host1:2222"], "worker": ["host2:2222", "host3:2222"], "ps": ["host4:2222"]},'
    ' "task": {"type": "chief", "index": 0}}'
)

_ADDRESS = re.compile(r"[^\s:/]+:(\d{1,5})")
_MAX_PORT = 65_535


@dataclass(frozen=True)
class Task:
    """This process, by its role and its place among those of that role; ``cluster`` has all addresses by role."""

    cluster: Mapping[str, Sequence[str]]
    role: str
    index: int


def task_of(text: str, roles: Collection[str]) -> Task | None:
    """What ``TF_CONFIG`` says; None if it is not right for a process of a cluster that has just these ``roles``.

    Addresses are ``HOST:PORT``, each once, one for the chief; the task is one of them, by its role and index.
    """
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        role, index = task["type"], int(task["index"])
        addresses = [each for name in roles for each in cluster[name]]
        ports = [_ADDRESS.fullmatch(each) for each in addresses]
        is_right = (
            set(cluster) == set(roles)
            and all(isinstance(each, list) and each for each in cluster.values())
            and all(port is not None and 0 < int(port[1]) <= _MAX_PORT for port in ports)
            and len(set(addresses)) == len(addresses)
            and len(cluster.get(CHIEF, [""])) == 1
            and 0 <= index < len(cluster[role])
        )
    except (KeyError, TypeError, ValueError):
        return None
    return Task(cluster, role, index) if is_right else None


def several_in(text: str) -> str | None:
    """`SERVERS` or `WORKERS`, which a cluster of several processes has; None if ``TF_CONFIG`` is not right for one."""
    if task_of(text, WITH_SERVERS):
        return SERVERS
    task = task_of(text, [WORKER])
    return WORKERS if task and len(task.cluster[WORKER]) > 1 else None


def require_workers(text: str) -> Task:
    """The task of this process in a cluster of workers alone. Raises UsageError."""
    task = task_of(text, [WORKER])
    if task is None:
        raise UsageError(
            f"TF_CONFIG {text!r} names no workers HOST:PORT with this process among them. Start train/main.py by"
            f" train/launch.py, or set it as in {EXAMPLE}"
        )
    return task


def require_servers(text: str) -> Task:
    """The task of this process in a cluster of a chief, workers and parameter servers. Raises UsageError."""
    task = task_of(text, WITH_SERVERS)
    if task is None:
        raise UsageError(
            f"TF_CONFIG {text!r} names no chief, workers and ps HOST:PORT with this process among them. Start"
            f" train/main.py by train/launch.py --workers W --servers P, or set it as in {EXAMPLE_WITH_SERVERS}"
        )
    return task

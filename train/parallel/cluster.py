"""The processes that ``$TF_CONFIG`` names, as tf.distribute has it. Pure.

Format: https://www.tensorflow.org/guide/distributed_training, "Setting up the TF_CONFIG environment variable".
"""

import json
import re

from etl.errors import UsageError

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'

_ADDRESS = re.compile(r"[^\s:/]+:(\d{1,5})")
_MAX_PORT = 65_535


def workers_of(text: str) -> list[str]:
    """The addresses of the workers of ``TF_CONFIG``; none if it is not right for one of them.

    They are ``HOST:PORT``, each once; the task is one of them, by its index.
    """
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        workers, index = cluster["worker"], int(task["index"])
        ports = [_ADDRESS.fullmatch(each) for each in workers] if isinstance(workers, list) else []
        is_right = (
            set(cluster) == {"worker"}
            and all(port is not None and 0 < int(port[1]) <= _MAX_PORT for port in ports)
            and len(set(workers)) == len(ports)
            and task["type"] == "worker"
            and 0 <= index < len(ports)
        )
    except (KeyError, TypeError, ValueError):
        return []
    return list(workers) if is_right else []


def require_workers(text: str) -> list[str]:
    """The same. Raises UsageError if there are none."""
    if not (workers := workers_of(text)):
        raise UsageError(
            f"TF_CONFIG {text!r} names no workers HOST:PORT with this process among them. Start train/main.py by"
            f" train/launch.py, or set it as in {EXAMPLE}"
        )
    return workers

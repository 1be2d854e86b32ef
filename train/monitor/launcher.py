"""The place that a launcher gave this process, by its environment: horovodrun's, torchrun's or train/launch.py's."""

import os

_TORCH = {"RANK": "RANK", "SIZE": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_RANK", "LOCAL_SIZE": "LOCAL_WORLD_SIZE"}


def is_torchrun() -> bool:
    """True if torchrun, or another launcher with its variables, started this process."""
    return "HOROVOD_RANK" not in os.environ and {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ)


def launched_rank() -> int | None:
    """The rank that the launcher gave this process; None without a launcher."""
    return _number("RANK")


def launched_size() -> int:
    """The number of processes that the launcher started on all hosts; 1 without a launcher."""
    return _number("SIZE") or 1


def local_rank() -> int:
    """The place of this process among those of its host, from 0."""
    return _number("LOCAL_RANK") or 0


def local_size() -> int:
    """The number of processes on this host."""
    return _number("LOCAL_SIZE") or 1


def _number(name: str) -> int | None:
    value = os.environ.get(_TORCH[name] if is_torchrun() else f"HOROVOD_{name}")
    return None if value is None else int(value)

"""The place that a launcher gave this process, by its environment: horovodrun's, torchrun's or train/launch.py's."""

import os
from collections.abc import Mapping

from etl.errors import EnvironmentFailure

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


def require_place() -> None:
    """Raise EnvironmentFailure if variables of a launcher are not numbers, or a rank is not below its size."""
    for rank, size in (("RANK", "SIZE"), ("LOCAL_RANK", "LOCAL_SIZE")):
        for name in (rank, size):
            value = os.environ.get(_variable(name))
            if value is not None and _number(name) is None:
                raise EnvironmentFailure(f"{_variable(name)} {value!r} is not a number. Start the ranks by a launcher")
        place, count = _number(rank), _number(size)
        if place is not None and count is not None and place >= count:
            raise EnvironmentFailure(
                f"{_variable(rank)} {place} is not below {_variable(size)} {count}. Start the ranks by a launcher"
            )


def without_place(variables: Mapping[str, str]) -> dict[str, str]:
    """Without those by which another launcher gave this process a place: for processes that get their own."""
    places = {*_TORCH.values(), *(f"HOROVOD_{name}" for name in _TORCH)}
    return {name: value for name, value in variables.items() if name not in places}


def _variable(name: str) -> str:
    return _TORCH[name] if is_torchrun() else f"HOROVOD_{name}"


def _number(name: str) -> int | None:
    value = os.environ.get(_variable(name), "")
    return int(value) if value.isdecimal() else None

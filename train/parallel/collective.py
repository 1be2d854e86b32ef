"""The processes that train together: what they exchange as NumPy arrays and Python objects. Imports no framework."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from etl.errors import RingsliceError, explain
from train.monitor.heartbeat import FOR_ALL, Status

T = TypeVar("T")
Number = TypeVar("Number", bound=np.generic)
Operation = Literal["sum", "max"]


class RootFailure(RingsliceError):
    """Rank 0 failed and reported why; this rank ends with the same status and reports nothing."""

    is_reported = True

    def __init__(self, status: int) -> None:
        super().__init__("rank 0 failed")
        self.status = status


class HostsChanged(Exception):
    """Ranks have come or gone: those that are left go on with a new collective, from the last commit."""


class Collective(ABC):
    """Processes that call the same methods in the same order; ``rank`` counts them from 0 to ``size`` - 1."""

    rank: int
    size: int
    _monitor: Status | None = None

    @property
    def is_root(self) -> bool:
        """True on rank 0."""
        return self.rank == 0

    @abstractmethod
    def all_reduce(self, array: npt.NDArray[Number], operation: Operation = "sum") -> npt.NDArray[Number]:
        """The sum, or the maximum, over all ranks of each element of arrays of the same shape and dtype."""

    @abstractmethod
    def gather_object(self, value: T) -> list[T]:
        """Every rank's value, by rank, on every rank."""

    def broadcast_object(self, value: T, root: int = 0) -> T:
        """The value of rank ``root``, on every rank."""
        return self.gather_object(value)[root]

    def run_on_root(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on rank 0, on every rank.

        If it raises there, the error is raised on rank 0, and RootFailure with its status on the other ranks.
        """
        value: T | None = None
        error: Exception | None = None
        if self.is_root:
            if self._monitor is not None:
                self._monitor.local_phase(FOR_ALL)
            try:
                value = function()
            except Exception as raised:  # all ranks learn of it first, or they would wait for ever
                error = raised
        status = (explain(error) or (1, ""))[0] if error else None
        status, value = self.broadcast_object((status, value))
        if error is not None:
            raise error
        if status is not None:
            raise RootFailure(status)
        return value  # type: ignore[return-value] # rank 0's

    def run_root_first(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on each rank. Rank 0 calls it first: if it fails there, every rank raises."""
        found: list[T] = []
        self.run_on_root(lambda: found.append(function()))
        return found[0] if found else function()

    @abstractmethod
    def close(self) -> None:
        """Part from the other ranks, which are about to do the same."""


class SingleProcess(Collective):
    """One process."""

    rank, size = 0, 1

    def all_reduce(self, array: npt.NDArray[Number], operation: Operation = "sum") -> npt.NDArray[Number]:
        del operation
        return array

    def gather_object(self, value: T) -> list[T]:
        return [value]

    def close(self) -> None:
        """There are no other processes."""

"""How HDFS is spoken with: settings that options leave in the environment, for this process and all its children."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

from etl.errors import UsageError
from etl.values import parse_bytes

NATIVE, LIBHDFS = DRIVERS = ("native", "libhdfs")

DRIVER_VARIABLE = "RINGSLICE_HDFS_DRIVER"
USER_VARIABLE = "HADOOP_USER_NAME"
REPLICATION_VARIABLE = "RINGSLICE_HDFS_REPLICATION"
BLOCK_SIZE_VARIABLE = "RINGSLICE_HDFS_BLOCK_SIZE"
HEAP_VARIABLE = "RINGSLICE_HDFS_HEAP"

DEFAULT_HEAP = "256MiB"

Value = TypeVar("Value")


@dataclass(frozen=True)
class HdfsSettings:
    """How HDFS is spoken with. None: as the site has it."""

    driver: str = NATIVE
    user: str | None = None
    replication: int | None = None
    block_size_bytes: int | None = None
    heap_bytes: int = parse_bytes(DEFAULT_HEAP)

    def __post_init__(self) -> None:
        if self.driver not in DRIVERS:
            raise UsageError(f"--hdfs-driver {self.driver!r} is unknown; give {' or '.join(DRIVERS)}")
        if self.replication is not None and self.replication < 1:
            raise UsageError(f"--hdfs-replication {self.replication} is less than 1")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """The settings of this process: the options ``--hdfs-…`` leave them in the environment, for all its children.

        Raises UsageError for a value that is none.
        """
        try:
            return cls(
                driver=environment.get(DRIVER_VARIABLE) or NATIVE,
                user=environment.get(USER_VARIABLE) or None,
                replication=_optional(int, environment.get(REPLICATION_VARIABLE)),
                block_size_bytes=_optional(parse_bytes, environment.get(BLOCK_SIZE_VARIABLE)),
                heap_bytes=parse_bytes(environment.get(HEAP_VARIABLE) or DEFAULT_HEAP),
            )
        except ValueError as error:
            raise UsageError(f"the HDFS settings of the environment (RINGSLICE_HDFS_…): {error}") from None


def _optional(parse: Callable[[str], Value], text: str | None) -> Value | None:
    return parse(text) if text else None

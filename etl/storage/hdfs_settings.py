"""Addresses and settings of HDFS: options and the site's configuration decide both, and child processes inherit them.

There is one spelling of each address: ``host:port``, or a highly available nameservice of the site.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

from etl.errors import UsageError
from etl.hadoop.site_config import USER_VARIABLE, site_configuration
from etl.values import parse_bytes

SCHEME = "hdfs"
DEFAULT_PORT = 8020  # of a NameNode's RPC server, by Hadoop 3

NATIVE, LIBHDFS = DRIVERS = ("native", "libhdfs")

DRIVER_VARIABLE = "RINGSLICE_HDFS_DRIVER"
REPLICATION_VARIABLE = "RINGSLICE_HDFS_REPLICATION"
BLOCK_SIZE_VARIABLE = "RINGSLICE_HDFS_BLOCK_SIZE"
HEAP_VARIABLE = "RINGSLICE_HDFS_HEAP"

DEFAULT_HEAP = "256MiB"

Value = TypeVar("Value")


@dataclass(frozen=True)
class HdfsSettings:
    """The options ``--hdfs-...``. None: the site's configuration decides."""

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
        """The settings of this process: options leave them in the environment, for all child processes.

        Raises UsageError for an invalid value.
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


def authority_of(given: str) -> str:
    """The one spelling of the address ``given`` in a URI; an empty one is that of the site's default filesystem.

    Raises UsageError if there is no such default, or a nameservice has a port.
    """
    site = site_configuration()
    authority = given or _default_authority(site)
    host, port = split_authority(authority)
    if f"dfs.ha.namenodes.{host}" in site:
        if port:
            raise UsageError(f"hdfs://{authority}: {host} is a nameservice of the site, not a host; leave out the port")
        return host
    if not port and host in nameservices(site):  # of a single NameNode
        host, port = split_authority(site.get(f"dfs.namenode.rpc-address.{host}", host))
    if port and not port.isdecimal():
        raise UsageError(
            f"hdfs://{authority}: the port {port!r} is not a number; give hdfs://namenode:{DEFAULT_PORT}/path"
        )
    return f"{host.lower()}:{int(port or DEFAULT_PORT)}"


def nameservices(site: Mapping[str, str]) -> list[str]:
    """The nameservices of the site."""
    return [name for each in site.get("dfs.nameservices", "").split(",") if (name := each.strip())]


def default_filesystem(site: Mapping[str, str]) -> str:
    """The URI of the site's default filesystem; empty if it has none."""
    return site.get("fs.defaultFS") or site.get("fs.default.name", "")


def _default_authority(site: Mapping[str, str]) -> str:
    default = default_filesystem(site)
    scheme, _, rest = default.partition("://")
    if scheme.lower() != SCHEME or not rest.strip("/"):
        found = f" (it is {default})" if default else ""
        raise UsageError(
            f"hdfs:/// names the site's default filesystem, but core-site.xml has no fs.defaultFS with hdfs://{found};"
            " set HADOOP_CONF_DIR, or give hdfs://namenode:port/path"
        )
    return rest.partition("/")[0]


def split_authority(authority: str) -> tuple[str, str]:
    """Host and port of an address; the port may be empty."""
    host, colon, port = authority.rpartition(":")
    return (host, port) if colon and "]" not in port else (authority, "")

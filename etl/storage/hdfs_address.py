"""The address of an HDFS, in one spelling for each: ``host:port``, or a highly available nameservice of the site."""

from collections.abc import Mapping

from etl.errors import UsageError
from etl.hadoop.site_config import site_configuration

DEFAULT_PORT = 8020  # of a NameNode's RPC server, by Hadoop 3

SCHEME = "hdfs"


def authority_of(given: str) -> str:
    """The address that is written ``given`` in a URI; an empty one is that of the site's default filesystem.

    Raises UsageError where there is no such default, or a nameservice has a port.
    """
    site = site_configuration()
    authority = given or _default(site)
    host, port = split_authority(authority)
    if f"dfs.ha.namenodes.{host}" in site:
        if port:
            raise UsageError(f"hdfs://{authority}: {host} is a nameservice of the site, not a host; leave out the port")
        return host
    if not port and host in nameservices(site):  # of a single NameNode
        host, port = split_authority(site.get(f"dfs.namenode.rpc-address.{host}", host))
    if port and not port.isdecimal():
        raise UsageError(
            f"hdfs://{authority}: the port {port!r} is no number; give hdfs://namenode:{DEFAULT_PORT}/path"
        )
    return f"{host.lower()}:{int(port or DEFAULT_PORT)}"


def nameservices(site: Mapping[str, str]) -> list[str]:
    """The nameservices of the site."""
    return [name for each in site.get("dfs.nameservices", "").split(",") if (name := each.strip())]


def default_filesystem(site: Mapping[str, str]) -> str:
    """The URI of the site's default filesystem; empty where it has none."""
    return site.get("fs.defaultFS") or site.get("fs.default.name", "")


def _default(site: Mapping[str, str]) -> str:
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

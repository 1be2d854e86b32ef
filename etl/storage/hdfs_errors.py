"""What HDFS clients raise, as exceptions of ours: one line with the remedy in place of a Java stack trace."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from etl.errors import EnvironmentFailure, RingsliceError
from etl.hadoop.site_config import site_configuration
from etl.storage.hdfs_address import nameservices

# Java's exceptions by their last name: what it means, and what to do about it
_JAVA = {
    "AccessControlException": "check --hdfs-user, or the permissions of that folder",
    "SafeModeException": "the NameNode is in safe mode: wait for it, or: hdfs dfsadmin -safemode leave",
    "NSQuotaExceededException": "delete files, or have the quota raised: hdfs dfsadmin -setQuota",
    "DSQuotaExceededException": "free some space, or have the quota raised: hdfs dfsadmin -setSpaceQuota",
    "QuotaByStorageTypeExceededException": "free some space, or have the quota of that storage type raised",
    "StandbyException": "that NameNode is on standby: name the nameservice of the site instead",
    "InvalidPathException": "choose another name",
    "RetriableException": "run again in a moment",
    # hdfs-native does not wait for it, as Java's client does
    "NotReplicatedYetException": "a DataNode is slow to report its blocks: run again, or take --hdfs-driver libhdfs",
}
UNSUPPORTED_CODEC = "UnsupportedErasureCodingPolicy"  # hdfs-native's word
_RPC = re.compile(r'^(?:Fatal)?RPCError\("(?P<java>[\w.$]+)", "(?P<message>.*)"\)$', re.DOTALL)
_JAVA_LINE = re.compile(r"^(?P<name>[\w.$]+Exception): (?P<message>.*)$")
# what these four are told by, where a client has them as any other failure
_KNOWN = {
    NotADirectoryError: re.compile(r"\(is not a directory\)|expects base_dir of selector to be a directory"),
    FileExistsError: re.compile(r"Source .* and destination .* must both be directories"),
    # deleted while it was written
    FileNotFoundError: re.compile(r"(LeaseExpired|FileNotFound)Exception|does not have any open files"),
}
_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
}
_WITHOUT_DATANODE = re.compile(
    r"could only be written to \d+ of the \d+|Failed to find datanode|replicated to 0 nodes|Failed to complete file"
)
_BLOCKS = re.compile(
    r"BlocksNotFound|BlockMissing|All DataNodes failed|Could not obtain block|no (?:live )?datanode"
    r"|Failed to (?:read|connect)|HDFS read failed.*errno 255",  # of reads libhdfs tells no more
    re.I,
)
# no connection came to be, though the client tried for seconds
_UNREACHABLE = re.compile(
    r"Connection refused|failed to lookup address|UnknownHost|NoRouteToHost|No route to host|HDFS connection failed"
    r"|RPC response has a length",  # something else listens there
    re.I,
)
_NO_HOST = re.compile(r"failed to lookup address|UnknownHost|HDFS connection failed", re.I)
# one that was there was lost, and with it an answer
_LOST = re.compile(
    r"timed out|Connection reset|Connection closed|Broken pipe|disconnected|EOFException|end of file", re.I
)


class HdfsFailure(EnvironmentFailure):
    """HDFS refused or failed; ``transient`` where the same call may go through a moment later."""

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


@contextmanager
def explaining(place: str, address: str) -> Iterator[None]:
    """Within the block, what an HDFS client raises becomes HdfsFailure, or one of the four that callers tell apart.

    These are FileNotFoundError, FileExistsError, IsADirectoryError and NotADirectoryError.

    ``place`` is the URI at work, ``address`` the NameNode's.
    """
    try:
        yield
    except RingsliceError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise _known(error, place) or explain_failure(error, place, address) from error


def _known(error: Exception, place: str) -> OSError | None:
    """One of the four, its path the whole URI."""
    text = str(error)
    for kind, number in _NUMBERS.items():
        if isinstance(error, kind) or (kind in _KNOWN and _KNOWN[kind].search(text)):
            return OSError(number, os.strerror(number), place)  # Python makes it the right kind
    return None


def explain_failure(error: Exception, place: str, address: str) -> HdfsFailure:
    """The one line for what an HDFS client raised at ``place``."""
    text = str(error)
    if matched := _RPC.match(text):
        text = f"{matched['java']}: {matched['message']}".split("\\n")[0].replace('\\"', '"')
    line = text.splitlines()[0] if text else type(error).__name__
    if UNSUPPORTED_CODEC in text:
        return HdfsFailure(
            f"{place}: the native driver has no erasure coding but Reed-Solomon's, and writes a parity that restores"
            " nothing; take --hdfs-driver libhdfs, or another policy for the folder: hdfs ec -setPolicy"
        )
    if _WITHOUT_DATANODE.search(text):
        return _without_datanode(place)
    if _UNREACHABLE.search(text) or _LOST.search(text):
        remedy = _name_remedy() if _NO_HOST.search(text) else "(fs.defaultFS of core-site.xml) and that HDFS is up"
        return HdfsFailure(
            f"cannot reach the NameNode of {address} ({_reason(line)}); check the address {remedy}",
            transient=not _UNREACHABLE.search(text),
        )
    if _BLOCKS.search(text):
        return HdfsFailure(
            f"{place}: no live DataNode serves its blocks ({_reason(line)}); look at: hdfs fsck", transient=True
        )
    if java := _JAVA_LINE.match(line):
        name = java["name"].rpartition(".")[2]
        remedy = f" ({_JAVA[name]})" if name in _JAVA else ""
        return HdfsFailure(f"{place}: {java['message']}{remedy}", transient=name == "RetriableException")
    return HdfsFailure(f"{place}: {line}")


def _name_remedy() -> str:
    """What to do about a name that no host has."""
    try:
        known = nameservices(site_configuration())
    except EnvironmentFailure:
        known = []
    of_site = f"has {', '.join(known)}" if known else "names none"
    return f"(no host has that name, and dfs.nameservices of hdfs-site.xml {of_site}), or set HADOOP_CONF_DIR"


def _without_datanode(place: str) -> HdfsFailure:
    return HdfsFailure(
        f"{place}: no DataNode takes its blocks (none is alive, or all are full); look at: hdfs dfsadmin -report",
        transient=True,
    )


def _reason(line: str) -> str:
    """A client's own words, without what only its authors read."""
    return re.sub(r" \(os error \d+\)|: \[DatanodeInfoProto.*|: \[\]\"\)$", "", line)

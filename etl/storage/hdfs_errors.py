"""Failures of HDFS clients as one line with a remedy in place of a Java stack trace."""

import errno
import os
import re
from typing import NamedTuple

from etl.errors import EnvironmentFailure
from etl.hadoop.site_config import site_configuration
from etl.storage.hdfs_settings import nameservices

UNSUPPORTED_CODEC = "UnsupportedErasureCodingPolicy"  # hdfs-native's word

# Kinds of error that callers tell apart, and their words if a client raises them as any other failure.
KINDS: dict[type[OSError], tuple[int, str | None]] = {
    FileNotFoundError: (
        errno.ENOENT,
        r"(LeaseExpired|FileNotFound)Exception|does not have any open files",  # deleted while it was written
    ),
    FileExistsError: (errno.EEXIST, r"Source .* and destination .* must both be directories"),
    IsADirectoryError: (errno.EISDIR, None),
    NotADirectoryError: (
        errno.ENOTDIR,
        r"\(is not a directory\)|expects base_dir of selector to be a directory",
    ),
}


class _Rule(NamedTuple):
    """``message`` is formatted with ``place``, ``address``, ``reason``, ``names`` and the groups of ``pattern``."""

    pattern: str
    message: str
    is_transient: bool = False


_UNREACHABLE = "cannot reach the NameNode of {address} ({reason}); check the address "
_CHECK_SITE = "(fs.defaultFS of core-site.xml) and that HDFS is up"
_RULES = [  # the first that matches
    _Rule(
        UNSUPPORTED_CODEC,
        "{place}: the native driver has no erasure coding but Reed-Solomon's, and writes a parity that restores"
        " nothing; take --hdfs-driver libhdfs, or another policy for the folder: hdfs ec -setPolicy",
    ),
    _Rule(
        r"could only be written to \d+ of the \d+|Failed to find datanode|replicated to 0 nodes"
        r"|Failed to complete file",
        "{place}: no DataNode takes its blocks (none is alive, or all are full); look at: hdfs dfsadmin -report",
        is_transient=True,
    ),
    _Rule(
        r"failed to lookup address|UnknownHost|HDFS connection failed",
        _UNREACHABLE + "(no host has that name, and dfs.nameservices of hdfs-site.xml {names}), or set HADOOP_CONF_DIR",
    ),
    _Rule(  # the client tried for seconds; of the last, something else listens there
        r"Connection refused|NoRouteToHost|No route to host|RPC response has a length", _UNREACHABLE + _CHECK_SITE
    ),
    _Rule(  # a connection was lost, and with it an answer
        r"timed out|Connection reset|Connection closed|Broken pipe|disconnected|EOFException|end of file",
        _UNREACHABLE + _CHECK_SITE,
        is_transient=True,
    ),
    _Rule(
        r"BlocksNotFound|BlockMissing|All DataNodes failed|Could not obtain block|no (?:live )?datanode"
        r"|Failed to (?:read|connect)|HDFS read failed.*errno 255",  # libhdfs reports no more of a read
        "{place}: no live DataNode serves its blocks ({reason}); look at: hdfs fsck",
        is_transient=True,
    ),
    *(
        _Rule(rf"^[\w.$]*{name}: (?P<java>.*)", f"{{place}}: {{java}} ({remedy})", name == "RetriableException")
        for name, remedy in {
            "AccessControlException": "check --hdfs-user, or the permissions of that folder",
            "SafeModeException": "the NameNode is in safe mode: wait for it, or: hdfs dfsadmin -safemode leave",
            "NSQuotaExceededException": "delete files, or have the quota raised: hdfs dfsadmin -setQuota",
            "DSQuotaExceededException": "free some space, or have the quota raised: hdfs dfsadmin -setSpaceQuota",
            "QuotaByStorageTypeExceededException": "free some space, or have the quota of that storage type raised",
            "StandbyException": "that NameNode is on standby: name the nameservice of the site instead",
            "InvalidPathException": "choose another name",
            "RetriableException": "run again in a moment",
            # hdfs-native does not wait for it, as Java's client does
            "NotReplicatedYetException": (
                "a DataNode is slow to report its blocks: run again, or take --hdfs-driver libhdfs"
            ),
        }.items()
    ),
    _Rule(r"^[\w.$]+Exception: (?P<java>.*)", "{place}: {java}"),
    _Rule("", "{place}: {reason}"),
]
_RPC = re.compile(r'^(?:Fatal)?RPCError\("(?P<java>[\w.$]+)", "(?P<message>.*)"\)$', re.DOTALL)
_JARGON = re.compile(r" \(os error \d+\)|: \[DatanodeInfoProto.*|: \[\]\"\)$")


class HdfsFailure(EnvironmentFailure):
    """HDFS refused or failed; ``is_transient`` if the same call may succeed a moment later."""

    def __init__(self, message: str, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient


def explain_failure(error: Exception, text: str, place: str, address: str) -> OSError | HdfsFailure:
    """The exception for what an HDFS client raised, in its words ``text``, at the URI ``place``.

    FileNotFoundError, FileExistsError, IsADirectoryError and NotADirectoryError have ``place`` as their path; all else
    is HdfsFailure. ``address`` is that of the NameNode.
    """
    for kind, (number, words) in KINDS.items():
        if isinstance(error, kind) or (words and re.search(words, text)):
            return OSError(number, os.strerror(number), place)  # Python makes it the right kind
    if matched := _RPC.match(text):
        text = f"{matched['java']}: {matched['message']}".split("\\n")[0].replace('\\"', '"')
    line = text.splitlines()[0] if text else type(error).__name__
    rule, found = next((rule, found) for rule in _RULES if (found := re.search(rule.pattern, text, re.IGNORECASE)))
    facts = {"place": place, "address": address, "reason": _JARGON.sub("", line), "names": _names_of_site()}
    return HdfsFailure(rule.message.format(**facts, **found.groupdict()), rule.is_transient)


def _names_of_site() -> str:
    try:
        known = nameservices(site_configuration())
    except EnvironmentFailure:
        known = []
    return f"has {', '.join(known)}" if known else "names none"

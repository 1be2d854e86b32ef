"""Folders on HDFS: check that the cluster answers, and put files there."""

from collections.abc import Iterator

from etl.errors import EnvironmentFailure, RingsliceError, explain
from etl.hadoop.site_config import hadoop_command
from etl.storage.place import open_place
from lib.failure import Failure
from lib.processes import call, run_quietly


def check_hdfs(option: str, uri: str, needs_command: bool = True) -> None:
    """Raises Failure if the cluster does not answer, or if ``needs_command`` and there is no ``hadoop`` program."""
    try:
        if needs_command:
            hadoop_command()
    except EnvironmentFailure as error:
        raise _failure(option, uri, str(error)) from None
    for line in call("lib.hdfs:probe", uri):
        raise _failure(option, uri, line)


def probe(uri: str) -> Iterator[str]:
    """In a child process, because clients of HDFS leave threads behind: the error, if there is one."""
    try:
        open_place(uri).info()
    except (RingsliceError, OSError, ValueError) as error:
        explained = explain(error)
        yield explained[1] if explained else str(error)


def _failure(option: str, uri: str, line: str) -> Failure:
    reason, _, fix = line.partition("; ")
    return Failure(option, uri, reason, fix[:1].upper() + fix[1:] if fix else "Check the address and the cluster")


def hadoop_fs(*words: object) -> None:
    """``hadoop fs WORDS``. Raises Failure."""
    run_quietly(hadoop_command(), "fs", *words)


def delete_folder(target: str) -> None:
    """Delete ``target`` with all that is in it."""
    hadoop_fs("-rm", "-r", "-f", "-skipTrash", target)

"""Calls of HDFS without one: which are repeated, what a client's words become, and what reaches the client."""

import os
from collections.abc import Callable
from itertools import count
from unittest import mock

import pyarrow
import pytest
from pyarrow import fs

from etl.errors import EnvironmentFailure
from etl.storage import hdfs as module
from etl.storage.hdfs import RETRY_PAUSES_S, RETRY_TIMEOUT_S, HdfsFilesystem, _Handler
from etl.storage.hdfs_errors import HdfsFailure
from etl.storage.hdfs_settings import HdfsSettings
from etl.storage.libhdfs import LibhdfsHdfs
from etl.storage.native import NativeHdfs

MIB = 1 << 20
LOST = RuntimeError("Connection reset by peer")


class Clock:
    """Time that passes only during pauses and calls."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def hdfs() -> NativeHdfs:
    return NativeHdfs("nowhere:8020", HdfsSettings())


def failing(clock: Clock, failures: int, takes_s: float = 0, error: Exception = LOST) -> Callable[[], int]:
    """A call that fails so many times, each taking so long, then returns its number."""
    numbers = count(1)

    def call() -> int:
        number = next(numbers)
        clock.now_s += takes_s
        if number <= failures:
            raise error
        return number

    return call


@pytest.mark.parametrize("failures", [0, 1, len(RETRY_PAUSES_S)])
def test_a_transient_failure_is_retried_with_growing_pauses(failures: int, hdfs: NativeHdfs, clock: Clock) -> None:
    assert hdfs.call("/x", failing(clock, failures)) == failures + 1
    assert clock.pauses_s == list(RETRY_PAUSES_S[:failures]) == sorted(clock.pauses_s)


@pytest.mark.parametrize(
    ("error", "takes_s", "calls"),
    [
        (LOST, 0, len(RETRY_PAUSES_S) + 1),
        (LOST, RETRY_TIMEOUT_S + 1, 1),
        (LOST, RETRY_TIMEOUT_S / 2, 2),
        (RuntimeError("Connection refused"), 0, 1),
        (FileNotFoundError(2, "gone"), 0, 1),
        (EnvironmentFailure("another run has taken over"), 0, 1),
    ],
)
def test_it_gives_up(error: Exception, takes_s: float, calls: int, hdfs: NativeHdfs, clock: Clock) -> None:
    with pytest.raises((EnvironmentFailure, FileNotFoundError)):
        hdfs.call("/x", failing(clock, 99, takes_s, error))
    assert clock.pauses_s == list(RETRY_PAUSES_S[: calls - 1])


PLACE = "hdfs://nowhere:8020/x"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException: No lease", FileNotFoundError),
        ("Source /a and destination /b must both be directories", FileExistsError),
        ("/a (is not a directory)", NotADirectoryError),
    ],
)
def test_a_kind_of_error_is_known_by_its_words(words: str, kind: type[OSError], hdfs: NativeHdfs) -> None:
    with pytest.raises(kind) as raised, hdfs.explain_errors("/x"):
        raise RuntimeError(words)
    assert raised.value.filename == PLACE


@pytest.mark.parametrize(
    ("words", "line", "is_transient"),
    [
        ("failed to lookup address information", "hdfs-site.xml names none), or set HADOOP_CONF_DIR", False),
        ("Connection refused (os error 111)", "NameNode of hdfs://nowhere:8020 (Connection refused); check", False),
        ("operation timed out", "(fs.defaultFS of core-site.xml) and that HDFS is up", True),
        (
            'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied: user=a\\n\\tat b")',
            "/x: Permission denied: user=a (check --hdfs-user, or the permissions of that folder)",
            False,
        ),
        ("org.apache.hadoop.ipc.RetriableException: wait", "/x: wait (run again in a moment)", True),
        ("java.io.IOException: any other\n\tat b", "/x: any other", False),
        ("any other\nof two lines", "/x: any other", False),
    ],
)
def test_a_failure_is_one_line_with_its_remedy(words: str, line: str, is_transient: bool, hdfs: NativeHdfs) -> None:
    with pytest.raises(HdfsFailure) as raised, hdfs.explain_errors("/x"):
        raise RuntimeError(words)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.is_transient == is_transient


@pytest.mark.parametrize(("driver", "opened"), [(NativeHdfs, "client"), (LibhdfsHdfs, "driver")])
def test_a_connection_does_not_outlive_a_fork(
    driver: type[HdfsFilesystem], opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that was not used may be used in a fork."""
    for name in ("_connect", "_open_jvm"):
        monkeypatch.setattr(driver, name, lambda self: object(), raising=False)
    used, unused = driver("nowhere:8020", HdfsSettings()), driver("nowhere:8020", HdfsSettings())
    assert getattr(used, opened) is getattr(used, opened)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert getattr(unused, opened) is not None
    with pytest.raises(EnvironmentFailure, match=f"was opened by process {parent} .* open places after the fork, in"):
        getattr(used, opened)


def test_a_write_larger_than_the_buffer_reaches_the_driver_as_bytes(hdfs: NativeHdfs) -> None:
    """hdfs-native converts any other buffer one byte at a time: 5 MB/s, and a core of its own."""
    written, data = list[object](), b"x" * (3 * MIB)
    with hdfs.buffered("/file", written.append, lambda: None) as stream:
        for large in (data, memoryview(data), pyarrow.py_buffer(data)):
            stream.write(large)
    assert {type(each) for each in written} == {bytes}
    assert written == [data] * 3


def test_a_listing_is_repeated_if_a_folder_below_goes_meanwhile() -> None:
    handler = _Handler(mock.Mock())
    answers = [FileNotFoundError, fs.FileInfo("/x", fs.FileType.Directory), ["a"]]
    with mock.patch.object(handler, "_call", side_effect=answers):
        found = handler.get_file_info_selector(fs.FileSelector("/x", allow_not_found=True, recursive=True))
    assert found == ["a"]

"""Tiers of tests, and how the workers of pytest-xdist share them. A plugin of pytest.

- A test without a marker is a unit test: it runs in this process. One that starts a process fails.
- `integration`: starts processes, or takes seconds. `hadoop`: needs the cluster; set by its fixtures.
- `witness`: the real proof of a guarantee, in the tier that README names.
- `chaos`: exhaustive variants.

A test of the last four that fails is run once more (pytest-rerunfailures), because the machine may be busy. Each rerun
is listed at the end of the run with its failure: look into it, it is a defect of the product or of the test.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

HADOOP_FIXTURES = frozenset({"hadoop", "hadoop_alone", "cluster", "hdfs_root"})
NOT_UNIT = ("integration", "hadoop", "witness", "chaos")
PROCESS_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

_started: list[str] = []  # the processes that the test at work has started
_own_pid = os.getpid()


def pytest_configure() -> None:
    sys.addaudithook(_note_process)


def _note_process(event: str, arguments: tuple[Any, ...]) -> None:
    if event in PROCESS_STARTS and os.getpid() == _own_pid:
        _started.append(f"{event} {arguments[:2]}"[:200])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its worker: one for all that need the cluster, else one for each module, so that its fixtures are
    made once. Hadoop's and the trainer's begin, because they take longest.
    """
    for item in items:
        if _has(item, *NOT_UNIT) or HADOOP_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if HADOOP_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.hadoop)
        if item.config.pluginmanager.hasplugin("xdist"):  # which defines the marker; child runs by libhdfs are without
            item.add_marker(pytest.mark.xdist_group("hadoop" if _has(item, "hadoop") else item.path.stem))
    items.sort(key=lambda item: (not _has(item, "hadoop"), "train" not in item.path.parts))


def _has(item: pytest.Item, *markers: str) -> bool:
    return any(item.get_closest_marker(marker) for marker in markers)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _started.clear()
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if _started and not _has(item, *NOT_UNIT):
        pytest.fail(f"a unit test started a process: {_started[0]}; mark it integration", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the failures that a rerun hid: pytest-rerunfailures only names the tests."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed before its rerun: {report.nodeid}")
        terminalreporter.line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.line(f"{name}\n{text[-4000:]}")

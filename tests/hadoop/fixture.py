"""The pytest fixture `hadoop`: one cluster for a worker of a test run, started by the first test that needs it."""

import shutil
from collections.abc import Iterator

import pytest

from tests.hadoop.cluster import Cluster
from tests.lib.set_up import fail_in_one_line


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real Hadoop of this worker alone, which ends with it. Tests that kill its daemons use `hadoop_alone`."""
    folder = tmp_path_factory.getbasetemp() / "hadoop"
    with fail_in_one_line():
        cluster = Cluster.start(folder, die_with_parent=True)
    yield cluster
    cluster.stop()
    for name in ("data", "tmp", "yarn"):  # pytest keeps the folders of three runs: the logs are enough
        shutil.rmtree(folder / name, ignore_errors=True)


@pytest.fixture
def hadoop_alone(hadoop: Cluster) -> Iterator[Cluster]:
    """The cluster, for a test that kills daemons: those that are dead after it are started again."""
    yield hadoop
    with fail_in_one_line():
        hadoop.restart_dead()

"""The pytest fixture `hadoop`: one cluster for all workers of a test run, started by the first that asks for it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hadoop import guardian
from tests.hadoop.cluster import DAEMONS, Cluster
from tests.hadoop.distribution import locked
from tests.hadoop.processes import Process


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real Hadoop, ended by the last worker that leaves it, or when all of them are gone.

    Tests that kill its daemons use `hadoop_alone`; tests that those must not disturb, `hadoop_undisturbed`.
    """
    folder = _shared_folder(tmp_path_factory) / "hadoop"
    folder.mkdir(exist_ok=True)
    me = Process.this()
    with locked(folder / "start.lock"):
        guardian.join(folder, me)
        cluster = Cluster.attach(folder) if Cluster.is_up(folder) else Cluster.start(folder, die_with_parent=True)
    yield cluster
    with locked(folder / "start.lock"):
        if guardian.leave(folder, me) == 0:
            cluster.stop()
            for name in ("data", "tmp", "yarn"):  # pytest keeps the folders of three runs: the logs are enough
                shutil.rmtree(folder / name, ignore_errors=True)


@pytest.fixture
def hadoop_undisturbed(hadoop: Cluster) -> Iterator[Cluster]:
    """The cluster, while no test has it alone."""
    with hadoop.undisturbed():
        yield hadoop


@pytest.fixture
def hadoop_alone(hadoop: Cluster) -> Iterator[Cluster]:
    """The cluster for this test alone; daemons that it leaves dead are started again."""
    with hadoop.alone():
        yield hadoop
        for daemon in DAEMONS:
            if not hadoop.lives(daemon):
                hadoop.restart(daemon)


def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # a worker's is inside its run's

"""The roots that the suites of storage run on: local files, and HDFS by each driver.

A JVM does not get along with forks, and libhdfs moves standard error to quiet it. So its cases run in one child, a
pytest of its own (`run_in_child`); this process has local files and hdfs-native.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.storage.hdfs_settings import DRIVER_VARIABLE, LIBHDFS, NATIVE
from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.lib.commands import REPOSITORY
from tests.lib.on_hadoop import set_site
from tests.lib.set_up import fail_in_one_line

CHILD_VARIABLE = "RINGSLICE_TEST_LIBHDFS"
CLUSTER_VARIABLE = "RINGSLICE_TEST_CLUSTER"  # the folder of a cluster that runs already

IN_CHILD = CHILD_VARIABLE in os.environ
ON_HDFS = pytest.param(LIBHDFS if IN_CHILD else NATIVE, marks=pytest.mark.hadoop)
KINDS = [ON_HDFS] if IN_CHILD else ["local", ON_HDFS]


CONTRACT = frozenset({"test_filesystem", "test_atomic", "test_stage", "test_lease"})  # on HDFS, witnesses


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in CONTRACT and item.get_closest_marker("hadoop"):
            item.add_marker(pytest.mark.witness)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, with its site in the environment."""
    folder = os.environ.get(CLUSTER_VARIABLE)
    with fail_in_one_line():
        found = Cluster.attach(Path(folder)) if folder else request.getfixturevalue("hadoop")
    set_site(found, monkeypatch)
    return found


@pytest.fixture
def hdfs_root(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """An empty folder of the test's own on HDFS."""
    monkeypatch.setenv(DRIVER_VARIABLE, LIBHDFS if IN_CHILD else NATIVE)
    place = open_place(f"{cluster.uri}/tmp/{uuid.uuid4().hex}").make_folder()
    yield place
    place.delete()


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty folder of the test's own: local, and on HDFS."""
    return open_place(str(tmp_path)) if request.param == "local" else request.getfixturevalue("hdfs_root")


def names(folder: Place) -> list[str]:
    return [info.base_name for info in folder.children()]


def names_below(folder: Place) -> list[str]:
    return [info.path.removeprefix(folder.path + "/") for info in folder.children(recursive=True)]


# pytest, but without Python's end: threads that a JVM leaves sometimes abort there, after all tests have passed.
PYTEST = "import sys, pytest; from etl.entry_point import end_process; end_process(pytest.main(sys.argv[1:]))"


def run_in_child(cluster: Cluster, *words: str, timeout_s: float = 600) -> None:
    """Run tests by libhdfs, in a process of their own: pytest's ``words``. Its failures become this test's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "--show-capture=no")
    done = subprocess.run(
        [sys.executable, "-c", PYTEST, *options, *words],
        cwd=REPOSITORY,
        env=kept | {CHILD_VARIABLE: "1", CLUSTER_VARIABLE: str(cluster.folder)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if done.returncode:
        said = f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
        pytest.fail(f"by libhdfs, status {done.returncode}:\n{said}", pytrace=False)

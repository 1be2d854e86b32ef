"""The digits that tests on a real cluster use, what becomes of them without one, and a folder on its HDFS."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.storage.place import Place, open_place
from tests.hadoop.cluster import Cluster
from tests.lib.commands import copy_some, ringslice, run, succeeded

IMAGE_OPTIONS = ("--size", "20", "--color", "gray", "--format", "png")
OPTIONS = (*IMAGE_OPTIONS, "--pack-size", "12KB", "--workers", "2", "--slices", "4")


@pytest.fixture(scope="module")
def few_digits(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_some(digits, tmp_path_factory.mktemp("few"), "0123456789", slice(24))


@pytest.fixture(scope="module")
def expected(few_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """SHA-256 of all that the pipeline makes of them in one process, on local files."""
    root = tmp_path_factory.mktemp("roots") / "inline"
    succeeded(ringslice("pipeline", few_digits, root, *OPTIONS, "-r", "inline"))
    return digests(open_place(str(root)))


@pytest.fixture
def hdfs(hadoop: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A new folder on the cluster, with its site in the environment."""
    set_site(hadoop, monkeypatch)
    folder = open_place(f"{hadoop.uri}/tests/{uuid.uuid4().hex}").make_folder()
    yield folder
    folder.delete()


def set_site(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process, and those that it starts, find the cluster."""
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)


def dfs(cluster: Cluster, *words: object) -> None:
    succeeded(run(cluster.home / "bin" / "hdfs", "dfs", *words, variables=cluster.environment()))


def put(cluster: Cluster, *folders: Path) -> str:
    """Copy local folders into a new one of the cluster's HDFS, whose URI is returned."""
    uri = f"{cluster.uri}/tests/{uuid.uuid4().hex}"
    dfs(cluster, "-mkdir", "-p", uri)
    dfs(cluster, "-put", *folders, uri)
    return uri


def digests(root: Place) -> dict[str, str]:
    """SHA-256 of every file below ``root`` by its path, except run.json."""
    files = [info.path for info in root.children(recursive=True) if info.is_file and info.base_name != "run.json"]
    return {path.removeprefix(f"{root.path}/"): Place(root.filesystem, path).sha256() for path in files}

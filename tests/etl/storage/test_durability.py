"""What a power cut leaves: a marker is never there without the files that it names, whole."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from etl.storage.atomic import publish_bytes
from etl.storage.place import Place
from tests.conftest import TreeMaker
from tests.hadoop.cluster import Cluster
from tests.lib.inline import ingest_here


@dataclass
class Disk:
    """What of a tree would be there after a power cut, in the strict reading of POSIX: what was synced, and no more."""

    files: set[str] = field(default_factory=set)  # whose bytes are on disk, by whatever name
    pending: dict[str, str] = field(default_factory=dict)  # names whose folder was not synced since, and their folders
    published: dict[str, set[str]] = field(default_factory=dict)  # with what was pending then

    def sync(self, path: str) -> None:
        self.files.add(path)
        self.pending = {name: folder for name, folder in self.pending.items() if folder != path}

    def name(self, path: str, target: str) -> None:
        assert path in self.files, f"{path} became {target} before it was synced"
        self.published[target] = set(self.pending)
        self.files.add(target)
        self.pending[target] = os.path.dirname(target)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    sync, link, replace = os.fsync, os.link, os.replace

    def synced(descriptor: int) -> None:
        sync(descriptor)
        disk.sync(os.readlink(f"/proc/self/fd/{descriptor}"))

    def linked(path: str, target: str) -> None:
        link(path, target)
        disk.name(path, target)

    def replaced(path: str, target: str) -> None:
        replace(path, target)
        disk.name(path, target)

    for name, function in {"fsync": synced, "link": linked, "replace": replaced}.items():
        monkeypatch.setattr(os, name, function)
    return disk


def test_a_stage_makes_its_files_durable_before_its_marker(disk: Disk, make_tree: TreeMaker, tmp_path: Path) -> None:
    source, root = make_tree({"a": 4, "b": 4}), tmp_path / "new" / "root"
    ingest_here(source, root, pack_size="1KB")
    marker = str(root / "raw" / "dataset.json")
    before = list(disk.published)[: list(disk.published).index(marker)]
    assert len([name for name in before if name.endswith(".tar")]) > 1
    # what is moved into the run's own folder is about to be deleted
    assert not [name for name in {*disk.published[marker], *disk.pending} if "/_work/" not in name]
    folders = [root.parent, root, *(path for path in root.rglob("*") if path.is_dir())]
    assert {str(path.parent) for path in folders} <= disk.files


def test_a_file_on_hdfs_is_synced_before_it_has_its_name(cluster: Cluster, hdfs_root: Place) -> None:
    """By the NameNode's own log; libhdfs has no way to it, as its module says."""
    staging = (hdfs_root / "_work").make_folder()
    log = cluster.log("namenode")
    begin = log.stat().st_size
    for name in ("part", "marker"):
        publish_bytes(hdfs_root / name, staging, b"x")
    with log.open("rb") as stream:
        stream.seek(begin)
        lines = [line for line in stream.read().decode().splitlines() if staging.path in line]
    calls = [
        match[1] for line in lines if (match := re.search(r"(cmd=create|BLOCK\* fsync|completeFile|cmd=rename)", line))
    ]
    assert calls == ["cmd=create", "BLOCK* fsync", "completeFile", "cmd=rename"] * 2

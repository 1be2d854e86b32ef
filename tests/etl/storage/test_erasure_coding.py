"""Erasure-coded folders: both drivers write there what the other reads, and what a lost DataNode does not take."""

import os
import random
import signal
from pathlib import Path

import pytest

from etl.storage.hdfs_settings import DRIVER_VARIABLE, LIBHDFS, NATIVE
from etl.storage.place import Place, open_place
from tests.etl.storage.test_hdfs_drivers import run_python
from tests.hadoop.cluster import Cluster
from tests.hadoop.datanodes import more_datanodes, set_policy

XOR, REED_SOLOMON = "XOR-2-1-1024k", "RS-3-2-1024k"

WRITE = """
    import random, sys
    from etl.errors import EnvironmentFailure
    from etl.storage.atomic import publish_bytes
    from etl.storage.place import open_place

    folder = open_place(sys.argv[1])
    for size in map(int, sys.argv[2:]):
        try:
            publish_bytes(folder / f"final-{size}", folder, random.Random(size).randbytes(size))
            print(size)
        except EnvironmentFailure as error:
            print(error)
"""
READ = """
    import random, sys
    from etl.storage.place import open_place

    for size in map(int, sys.argv[2:]):
        print(open_place(f"{sys.argv[1]}/final-{size}").read_bytes() == random.Random(size).randbytes(size))
"""


def test_libhdfs_opens_files_in_an_erasure_coded_folder(cluster: Cluster, hdfs_root: Place) -> None:
    """Nothing can be appended there. An empty file needs no DataNode. A folder that was deleted is not made again."""
    set_policy(cluster, hdfs_root, XOR)
    script = """
        import sys
        import hdfs_native
        from etl.storage.place import open_place

        folder = open_place(sys.argv[1])
        hdfs, made = folder.filesystem, []
        hdfs.open_new((folder / "file").path).close()
        print([info.base_name for info in folder.children()])
        try:
            hdfs.open_new((folder / "file").path)
        except FileExistsError:
            print("taken")
        below = (folder / "below").make_folder()
        create = hdfs.create

        def create_then_lose_the_folder(path):
            made.append(path)
            writer = create(path)
            if len(made) == 2:
                writer.close()
                below.delete()
            return writer

        hdfs.create = create_then_lose_the_folder
        try:
            hdfs.open_new((below / "file").path)
        except FileNotFoundError as error:
            print("deleted", error.filename == (below / "file").uri, below.exists(), len(made))
        """
    printed = run_python(script, hdfs_root.uri, **{DRIVER_VARIABLE: LIBHDFS})
    assert printed.splitlines() == ["['file']", "taken", "deleted True False 2"]


@pytest.mark.chaos
def test_what_is_written_can_be_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each driver, in each coding, read by the other, with a DataNode gone."""
    sizes = ("0", "100", str(1 << 20), str(7 << 20))
    with Cluster.start(tmp_path / "own", die_with_parent=True) as own, more_datanodes(own, 4) as nodes:
        for name, value in own.environment().items():
            monkeypatch.setenv(name, value)
        root = open_place(f"{own.uri}/tmp/coded").make_folder()
        folders = {}
        for policy in (XOR, REED_SOLOMON):
            for driver in (NATIVE, LIBHDFS):
                folder = folders[driver, policy] = (root / f"{driver}-{policy}").make_folder()
                set_policy(own, folder, policy)
                printed = run_python(WRITE, folder.uri, *sizes, **{DRIVER_VARIABLE: driver}).splitlines()
                if (driver, policy) == (NATIVE, XOR):
                    assert printed[0] == "0"
                    assert "has no erasure coding but Reed-Solomon's" in printed[1]
                    assert "take --hdfs-driver libhdfs" in printed[1]
                    assert not (folder / "final-100").exists()
                else:
                    assert printed == list(sizes)
        nodes[random.Random(os.getpid()).randrange(len(nodes))].send(signal.SIGKILL)
        for reader, writer, policy in (
            (LIBHDFS, LIBHDFS, XOR),
            (LIBHDFS, NATIVE, REED_SOLOMON),
            (NATIVE, LIBHDFS, REED_SOLOMON),
            (NATIVE, NATIVE, REED_SOLOMON),
        ):
            read = run_python(READ, folders[writer, policy].uri, *sizes, **{DRIVER_VARIABLE: reader}).splitlines()
            assert read == ["True"] * len(sizes), (reader, writer, policy)

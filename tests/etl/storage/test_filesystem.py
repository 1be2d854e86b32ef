"""The contract of local files and of HDFS, by either driver."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from pyarrow import fs

from etl.storage.hdfs_settings import BLOCK_SIZE_VARIABLE
from etl.storage.place import Place, open_place
from tests.etl.conftest import IN_CHILD, names, names_below, run_in_child
from tests.hadoop.cluster import Cluster

MB = 10**6
NAMES = [" a b ", "a%20b", "a?b#c", "äöü", "a+b", "[a]{b,c}*", "a\\b", ".hidden"]


def write(place: Place, data: bytes = b"") -> Place:
    """Empty files are quick: hdfs-native waits half a second for a block."""
    with place.filesystem.open_new(place.path) as stream:
        stream.write(data)
    return place


def test_a_new_file_needs_its_folder_and_a_free_name(root: Place) -> None:
    file = write(root / "a", b"first")
    with pytest.raises(FileExistsError):
        write(file, b"second")
    assert file.read_bytes() == b"first"
    with pytest.raises(FileNotFoundError):
        write(root / "missing" / "a")
    with pytest.raises(NotADirectoryError):
        write(file / "a")
    with pytest.raises(FileExistsError):
        write((root / "folder").make_folder())
    assert names(root) == ["a", "folder"]


def test_a_folder_is_deleted_where_it_is_empty(root: Place) -> None:
    folder = (root / "folder").make_folder()
    write(folder / "a")
    root.filesystem.delete_empty(folder.path)
    assert names_below(root) == ["folder", "folder/a"]
    (folder / "a").delete()
    for _ in range(2):
        root.filesystem.delete_empty(folder.path)
        assert names(root) == []


def test_a_new_name_must_be_free(root: Place) -> None:
    one, two = write(root / "one", b"1"), write(root / "two")
    rename = root.filesystem.rename_new
    with pytest.raises(FileExistsError):
        rename(one.path, two.path)
    with pytest.raises(FileExistsError):
        rename(one.path, (root / "folder").make_folder().path)
    with pytest.raises(FileNotFoundError):
        rename((root / "missing").path, (root / "three").path)
    with pytest.raises(FileNotFoundError):
        rename(one.path, (root / "missing" / "three").path)
    assert names_below(root) == ["folder", "one", "two"]
    rename(one.path, (root / "folder" / "three").path)
    assert names_below(root) == ["folder", "folder/three", "two"]
    assert (root / "folder" / "three").read_bytes() == b"1"


def test_a_name_is_given_in_place_of_another_file(root: Place) -> None:
    one, two = write(root / "one", b"1"), write(root / "two")
    replace = root.filesystem.replace
    replace(one.path, two.path)
    assert (names(root), two.read_bytes()) == (["two"], b"1")
    replace(two.path, (root / "free").path)
    assert names(root) == ["free"]
    with pytest.raises(FileNotFoundError):
        replace(two.path, (root / "free").path)
    with pytest.raises(FileNotFoundError):
        replace((root / "free").path, (root / "missing" / "a").path)
    assert names(root) == ["free"]


def test_nothing_leaves_a_folder_that_was_deleted(root: Place) -> None:
    folder = (root / "attempts").make_folder()
    stream = root.filesystem.open_new((folder / "a").path)
    stream.write(b"x")
    folder.delete()
    with suppress(FileNotFoundError):  # on HDFS; a local file goes on without a name
        stream.write(bytes(3 * MB))
    with suppress(FileNotFoundError):
        stream.close()
    for call in (root.filesystem.rename_new, root.filesystem.replace):
        with pytest.raises(FileNotFoundError):
            call((folder / "a").path, (root / "a").path)
    with pytest.raises(FileNotFoundError):
        write(folder / "b")
    with pytest.raises(FileNotFoundError):
        root.filesystem.touch((folder / "a").path)
    assert names(root) == []


def test_the_time_of_change_is_now(root: Place) -> None:
    begin = time.time()
    file = write(root / "a", b"12345")
    assert begin - 2 < file.info().mtime_ns / 1e9 < time.time() + 2
    before = file.info()
    while (after := file.info()).mtime_ns == before.mtime_ns:  # libhdfs reports whole seconds
        assert time.time() < begin + 60
        root.filesystem.touch(file.path)
    assert before.mtime_ns < after.mtime_ns
    assert (before.size, before.type) == (after.size, after.type) == (5, fs.FileType.File)
    with pytest.raises(FileNotFoundError):
        root.filesystem.touch((root / "missing").path)


def test_what_is_there_and_what_is_not(root: Place) -> None:
    file = write(root / "a")
    assert (file.info().type, file.info().size, file.read_bytes()) == (fs.FileType.File, 0, b"")
    assert root.info().type == fs.FileType.Directory
    assert not root.info().size
    for missing in (root / "b", root / "b" / "c", file / "c"):
        assert missing.info().type == fs.FileType.NotFound
        assert not missing.exists()
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            missing.read_bytes()
    with pytest.raises(OSError, match=r"(?i)director") as caught:
        root.read_bytes()
    assert not isinstance(caught.value, FileNotFoundError)


def test_a_listing_is_sorted(root: Place) -> None:
    assert root.children() == []
    for name in ("2", "10"):
        write((root / "b").make_folder() / name)
    write(root / "a")
    assert names(root) == ["a", "b"]
    assert names_below(root) == ["a", "b", "b/10", "b/2"]
    assert (root / "missing").children() == (root / "missing" / "deeper").children(recursive=True) == []
    with pytest.raises(NotADirectoryError) as caught:
        (root / "a").children()
    assert "irectory" in str(caught.value)
    assert [info.type for info in root.children()] == [fs.FileType.File, fs.FileType.Directory]


def test_folders_are_made_with_all_above_them(root: Place) -> None:
    deep = (root / "a" / "b" / "c").make_folder()
    assert deep.make_folder().info().type == fs.FileType.Directory
    write(deep / "file")
    with pytest.raises(FileExistsError):
        (deep / "file").make_folder()
    with pytest.raises(NotADirectoryError):
        (deep / "file" / "below").make_folder()


def test_deleting_takes_all_below_and_nothing_else(root: Place) -> None:
    for name in ("a", "ab"):
        write((root / name / "deep").make_folder() / "file")
    (root / "a").delete()
    assert names(root) == ["ab"]
    (root / "ab" / "deep" / "file").delete()
    assert names_below(root) == ["ab", "ab/deep"]
    (root / "a").delete()
    (root / "a" / "deep" / "file").delete()
    root.delete()
    assert not root.exists()
    root.delete()


def test_names_are_taken_as_they_are(root: Place) -> None:
    for name in NAMES:
        folder = (root / name).make_folder()
        write(folder / f"{name}.tmp")
        root.filesystem.rename_new((folder / f"{name}.tmp").path, (folder / name).path)
        assert names_below(root) == [name, f"{name}/{name}"]
        assert (folder / name).info().base_name == name
        again = open_place((folder / name).uri)
        assert again == folder / name
        assert (again.name, again.parent) == (name, folder)
        folder.delete()
        assert names(root) == []


def test_a_file_is_read_at_any_offset(root: Place) -> None:
    file = write(root / "a.gz", bytes(range(100)))  # by default, pyarrow unpacks by the suffix
    assert file.read_bytes() == bytes(range(100))
    with file.open_input() as opened:
        assert opened.size() == 100
        assert opened.read_at(5, 10) == bytes(range(10, 15))
        opened.seek(0)  # its position after `read_at` is not defined
        assert opened.read(3) == bytes(range(3))
        assert opened.tell() == 3
        opened.seek(-2, 2)
        assert opened.read() == bytes((98, 99))
        assert opened.read() == opened.read(5) == b""
        opened.seek(40)
        opened.seek(2, 1)
        assert opened.read_buffer(2).to_pybytes() == bytes((42, 43))
        assert opened.read_at(10, 95) == bytes(range(95, 100))
    with file.open_stream() as stream:
        assert (stream.read(1), stream.read(), stream.read()) == (b"\0", bytes(range(1, 100)), b"")
    assert file.sha256() == hashlib.sha256(bytes(range(100))).hexdigest()


def test_a_large_file_of_many_blocks_is_read_by_many_threads(root: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BLOCK_SIZE_VARIABLE, "8MiB")  # hdfs-native fails where a block before last is not reported yet
    file = open_place(root.uri) / "large"
    data = np.random.default_rng(2).bytes(40 * MB)
    with file.filesystem.open_new(file.path) as stream:
        for start in range(0, len(data), 700_001):  # neither blocks nor buffers divide it
            stream.write(data[start : start + 700_001])
    assert file.info().size == len(data)
    assert file.sha256() == hashlib.sha256(data).hexdigest()
    with file.open_input() as opened, ThreadPoolExecutor(8) as pool:
        across = (8 << 20) - 5
        assert opened.read_at(3 << 20, across) == data[across : across + (3 << 20)]
        starts = range(across - 500_000, across + 500_000, 1000)
        parts = pool.map(lambda offset: opened.read_at(1000, offset), starts)
        assert b"".join(parts) == data[starts[0] : starts[-1] + 1000]


if not IN_CHILD:

    @pytest.mark.witness
    def test_by_libhdfs_it_is_all_the_same(cluster: Cluster) -> None:
        run_in_child(cluster, "tests/etl/storage/test_filesystem.py", "tests/etl/storage/test_atomic.py")

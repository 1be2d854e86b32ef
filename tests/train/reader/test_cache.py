"""The local cache: right bytes, never more than its limit, while other processes use it or are killed."""

import errno
import gc
import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from etl.errors import DataError
from etl.slices.manifest import Slice
from etl.storage.place import Place, open_place
from tests.lib.commands import REPOSITORY, wait_until
from train.reader.cache import SliceCache
from train.reader.cache_files import CacheFull

SIZE = 10_000


def slice_of(name: str, data: bytes) -> Slice:
    return Slice(name, 1, 1, len(data), hashlib.sha256(data).hexdigest(), 0, 0)


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


@pytest.fixture
def originals(tmp_path: Path) -> Place:
    """A folder of ten slices, `train/0` to `train/9`, of SIZE bytes each."""
    folder = tmp_path / "slices" / "train"
    folder.mkdir(parents=True)
    for number in range(10):
        (folder / f"{number}.tfrecord").write_bytes(content(number))
    return open_place(str(folder.parent))


SLICES = [slice_of(f"train/{number}", content(number)) for number in range(10)]

CacheMaker = Callable[[int], SliceCache]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def make_cache(folder: Path) -> Iterator[CacheMaker]:
    """Makes a cache in the same folder each time, with room for so many slices."""
    with ExitStack() as caches:
        yield lambda slices: caches.enter_context(SliceCache(folder, slices * SIZE))


def read(place: Place | None) -> bytes | None:
    if place is None:
        return None
    with place.open_input() as file:
        return file.read()


def held(cache: SliceCache) -> list[int]:
    """The numbers of the slices in the cache; does not count as use."""
    return [number for number, each in enumerate(SLICES) if cache._files.has(each.sha256)]


def fill(cache: SliceCache, originals: Place, slices: int) -> None:
    """Fetch the first slices; number 0 was used longest ago."""
    for number in range(slices):
        cache.fetch(originals, SLICES[number])
        age(cache, number, 100 - number)


def age(cache: SliceCache, number: int, seconds: int) -> None:
    """Let the slice's file have been used last so long ago."""
    os.utime(cache._files.path / f"{SLICES[number].sha256}.tfrecord", (time.time() - seconds,) * 2)


def test_what_is_fetched_is_read_without_its_original(originals: Place, make_cache: CacheMaker) -> None:
    cache = make_cache(10)
    assert cache.place_of(SLICES[3]) is None
    cache.fetch_ahead(originals, SLICES[:5])
    wait_until(lambda: held(cache) == [0, 1, 2, 3, 4])
    cache.fetch_ahead(originals, SLICES[5:6])  # of the next epoch
    wait_until(lambda: held(cache) == [0, 1, 2, 3, 4, 5])
    originals.delete()
    assert [read(cache.place_of(each)) for each in SLICES[:7]] == [*(content(n) for n in range(6)), None]
    same = slice_of("validation/other", content(0))  # of another dataset
    cache.fetch(originals, same)  # is not asked for again
    assert read(make_cache(10).place_of(same)) == content(0)


def test_the_least_recently_used_go_first(originals: Place, make_cache: CacheMaker) -> None:
    fill(make_cache(3), originals, 3)
    cache = make_cache(3)
    assert read(cache.place_of(SLICES[0])) == content(0)  # used now
    cache.fetch(originals, SLICES[5])
    assert held(cache) == [0, 2, 5]
    cache.fetch(originals, SLICES[6])
    assert held(cache) == [0, 5, 6]
    with pytest.raises(CacheFull):  # all were used since it was opened: what goes now would be wanted again
        cache.fetch(originals, SLICES[7])
    assert held(cache) == [0, 5, 6]
    age(cache, 0, 100)
    lower = make_cache(2)  # a lower limit holds at once
    lower.fetch_ahead(originals, SLICES[5:7])
    wait_until(lambda: held(lower) == [5, 6])


def test_what_is_read_stays(originals: Place, make_cache: CacheMaker) -> None:
    earlier = make_cache(2)
    fill(earlier, originals, 2)
    place = earlier.place_of(SLICES[0])
    assert place is not None
    age(earlier, 0, 100)
    cache = make_cache(2)
    cache.fetch(originals, SLICES[5])
    assert held(cache) == [0, 5]
    with place.open_input() as file:
        del place  # only the open file has its lock
        gc.collect()
        with pytest.raises(CacheFull):
            cache.fetch(originals, SLICES[6])
        assert file.read() == content(0)
    del file
    gc.collect()
    age(cache, 0, 100)
    cache.fetch(originals, SLICES[6])
    assert held(cache) == [5, 6]


def test_more_than_fits_is_reported_once(
    originals: Place, make_cache: CacheMaker, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = make_cache(3)
    for _ in range(2):
        cache.fetch_ahead(originals, SLICES)
        wait_until(lambda: cache._job is not None and not cache._job.wanted)
    assert held(cache) == [0, 1, 2]
    cache.close()
    assert capsys.readouterr().err == (f"ringslice cache: {folder} is full: not every slice is kept (--cache-size)\n")


@pytest.mark.parametrize("wrong", [content(5), content(4) + b"more", None], ids=["another", "longer", "missing"])
def test_an_original_that_is_not_as_recorded_is_not_kept(
    wrong: bytes | None, originals: Place, make_cache: CacheMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reader of one that is missing reports it."""
    original, cache = Path(originals.path) / "train/4.tfrecord", make_cache(10)
    original.unlink()
    if wrong is not None:
        original.write_bytes(wrong)
    cache.fetch_ahead(originals, SLICES[4:6])
    wait_until(lambda: held(cache) == [5])
    line = f"ringslice cache: {original} does not have the SHA-256 of its manifest, and is not kept\n"
    assert capsys.readouterr().err == ("" if wrong is None else line)
    original.write_bytes(content(4))
    cache.fetch(originals, SLICES[4])
    assert read(cache.place_of(SLICES[4])) == content(4)
    assert not list(cache._files.path.glob("*.part"))


def test_what_a_killed_process_left_is_removed_and_files_of_others_stay(
    originals: Place, make_cache: CacheMaker, folder: Path
) -> None:
    """A part that nobody writes any more does not count, and is not taken for the slice."""
    others = {"mine.tfrecord", "mine.part"}
    folder.mkdir()
    for name in (*others, *(f"{each.sha256}.part" for each in SLICES[:2])):
        (folder / name).write_bytes(bytes(SIZE))
        os.utime(folder / name, (0, 0))
    cache = make_cache(1)
    assert cache.place_of(SLICES[0]) is None
    cache.fetch(originals, SLICES[0])
    assert read(cache.place_of(SLICES[0])) == content(0)
    assert {path.name for path in folder.iterdir()} == {*others, f"{SLICES[0].sha256}.tfrecord", "lock"}


def test_a_disk_may_take_less_than_was_given(originals: Place, make_cache: CacheMaker) -> None:
    cache, write = make_cache(1), os.write
    with mock.patch("os.write", lambda descriptor, data: write(descriptor, data[: SIZE // 3])):
        cache.fetch(originals, SLICES[0])
    assert read(cache.place_of(SLICES[0])) == content(0)


def test_a_name_that_is_no_hash_is_refused(originals: Place, make_cache: CacheMaker) -> None:
    cache, forged = make_cache(10), Slice("train/0", 1, 1, SIZE, "../../outside", 0, 0)
    for call in (cache.place_of, cache.drop, lambda slice: cache.fetch_ahead(originals, [slice])):
        with pytest.raises(DataError, match=r"'\.\./\.\./outside' in the manifest is not a SHA-256"):
            call(forged)


def test_a_failing_folder_is_reported_once(
    originals: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for quiet in (False, True):
        with SliceCache(tmp_path / "file" / "cache", 10 * SIZE, quiet) as cache:
            cache.fetch_ahead(originals, SLICES)
            assert [cache.place_of(each) for each in SLICES] == [None] * 10
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ringslice cache: nothing more is kept in {tmp_path}/file/cache: Not a directory")


@pytest.mark.parametrize("call", ["os.truncate", "os.write"])
def test_a_full_disk_is_reported_once(
    call: str, originals: Place, make_cache: CacheMaker, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = make_cache(10)
    cache.fetch(originals, SLICES[0])
    with mock.patch(call, side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
        cache.fetch_ahead(originals, SLICES)
        assert cache._thread is not None
        cache._thread.join()
    cache.fetch_ahead(originals, SLICES)
    assert held(cache) == [0]
    assert not list(folder.glob("*.part"))
    assert capsys.readouterr().err == (
        f"ringslice cache: nothing more is kept in {folder}: No space left on device"
        " (free some space or choose another place)\n"
    )


def test_two_caches_do_not_copy_the_same_at_once(originals: Place, make_cache: CacheMaker) -> None:
    first, second = make_cache(10), make_cache(10)
    part = first._files.start_part(SLICES[0].sha256, SIZE, 0)
    assert part is not None
    with part:
        second.fetch(originals, SLICES[0])
        assert held(second) == []
        with pytest.raises(CacheFull):  # what is being written counts in full
            make_cache(1).fetch(originals, SLICES[1])
        part.write(pa.py_buffer(content(0)))
        first._files.publish(part, SLICES[0].sha256)
    assert read(second.place_of(SLICES[0])) == content(0)
    second.fetch(originals, SLICES[2])  # it has not given up
    assert held(second) == [0, 2]


def use_for_ever(originals: str, folder: str, seed: int) -> None:
    choose = random.Random(seed)
    while True:
        cache = SliceCache(Path(folder), 3 * SIZE)
        for each in choose.sample(SLICES, 4):
            with suppress(CacheFull):
                cache.fetch(open_place(originals), each)
            data = read(cache.place_of(each))
            assert data is None or hashlib.sha256(data).hexdigest() == each.sha256
            if choose.random() < 0.05:
                cache.drop(each)


@pytest.mark.integration
def test_several_jobs_share_a_folder(originals: Place, folder: Path) -> None:
    """It is never above its limit, and no wrong byte is read."""
    folder.mkdir()
    seen = set[str]()

    def all_were_there() -> bool:
        sizes = {}
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                sizes[path.name] = path.stat().st_size
        assert sum(sizes.values()) <= 3 * SIZE
        seen.update(name for name in sizes if name.endswith(".tfrecord"))
        return len(seen) == len(SLICES)

    with ExitStack() as ends:
        users = []
        for seed in range(3):
            script = f"from {__name__} import *; use_for_ever({originals.path!r}, {str(folder)!r}, {seed})"
            words = [sys.executable, "-c", script]
            users.append(ends.enter_context(subprocess.Popen(words, cwd=REPOSITORY, stderr=subprocess.PIPE)))
            ends.callback(users[-1].kill)
        for user in users:  # one after the other is killed
            seen.clear()
            wait_until(all_were_there)
            assert user.poll() is None
            user.kill()
            assert user.communicate()[1] == b""

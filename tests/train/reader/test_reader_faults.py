"""The reader on slices that are damaged, now or while they are read: never a wrong record, and the right error."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from etl.errors import DataError, EnvironmentFailure
from etl.formats import parquet_tables
from etl.formats.example import parse
from etl.slices.manifest import EXAMPLES_FILE, Manifest
from etl.storage.place import open_place
from tests.lib.commands import copy_some
from tests.lib.inline import ingest_here, normalize_here, shard_here
from train.reader.batches import RecordBatch
from train.reader.cache import SliceCache
from train.reader.config import SKIP, STOP, Reading
from train.reader.intervals import Steps
from train.reader.reader import SplitReader


@dataclass(frozen=True)
class Written:
    """Finished slices in ``folder``, whose training split was written as ``examples`` tells, by their numbers."""

    folder: Path
    examples: dict[int, bytes]

    @classmethod
    def copied(cls, folder: Path, target: Path) -> "Written":
        return cls(shutil.copytree(folder, target), read_examples(folder))

    @property
    def slices(self) -> list[Path]:
        return sorted((self.folder / "train").glob("*.tfrecord"))

    def open(self, **how: object) -> SplitReader:
        return SplitReader(open_place(str(self.folder)), read_manifest(self.folder), "train", Reading(**how))  # type: ignore[arg-type]

    def read(self, reader: SplitReader, batch: int = 50) -> Iterator[RecordBatch]:
        """The batches of an epoch on one rank; each is held to what was written."""
        for each in reader.batches(reader.order(0, 1), Steps(reader.total, 1, batch), 0):
            assert each.examples() == [self.examples[number] for number in each.numbers.tolist()]
            yield each

    def numbers(self, batches: Iterable[RecordBatch]) -> list[int]:
        """Those of the examples that are no repeats; each comes once."""
        found = [number for each in batches for number in each.numbers[each.weights > 0].tolist()]
        assert len(found) == len(set(found))
        return found


def read_examples(folder: Path) -> dict[int, bytes]:
    """The serialized examples of the training split, by their numbers; without the reader's help."""
    found, keys = dict[int, bytes](), parquet_tables.read_table(open_place(str(folder / EXAMPLES_FILE)), ["key"])["key"]
    for each in read_manifest(folder).splits["train"]:
        data = (folder / f"{each.name}.tfrecord").read_bytes()
        for number, (offset, size) in enumerate(index(folder / f"{each.name}.idx"), each.first_example):
            found[number] = data[offset + 12 : offset + size - 4]
            assert parse(found[number]).key == keys[number].as_py()
    return found


def read_manifest(folder: Path) -> Manifest:
    return Manifest.from_json(json.loads((folder / "manifest.json").read_text()))


def index(path: Path) -> list[tuple[int, int]]:
    return [(int(offset), int(size)) for offset, size in map(str.split, path.read_text().splitlines())]


def make_slices(source: Path, split: str, slices: int, *pixels: object) -> Path:
    """A root beside ``source`` with slices of raw pixels, so many for training."""
    root = source.parent / "root"
    ingest_here(source, root)
    normalize_here(root, "--format", "raw", *pixels)
    shard_here(root, "--split", split, "--workers", 1, "--slices", slices)
    return root


@pytest.fixture(scope="module")
def tiny_root(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two training slices of three records each, of 237 bytes."""
    source = copy_some(digits, tmp_path_factory.mktemp("tiny") / "source", "01", slice(5))
    return make_slices(source, "train=6,test=rest", 2, "--size", 4, "--color", "gray")


@pytest.fixture
def tiny(tiny_root: Path, tmp_path: Path) -> Written:
    return Written.copied(tiny_root / "slices" / "default", tmp_path / "slices")


@pytest.fixture(scope="module")
def long_root(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two training slices of 850 records each, in four blocks."""
    source = tmp_path_factory.mktemp("long") / "source"
    source.symlink_to(digits)
    return make_slices(source, "train=1700,test=rest", 2, "--size", 4, "--color", "gray")


@pytest.fixture
def long(long_root: Path, tmp_path: Path) -> Written:
    return Written.copied(long_root / "slices" / "default", tmp_path / "slices")


def flip(path: Path, place: int, bits: int) -> None:
    """Flip these bits of the byte at ``place``, in the file as it lies there."""
    with path.open("r+b", buffering=0) as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ bits]))


def damaged_at(path: Path, number: int, written: Written) -> str:
    """A pattern of the line that names a slice's record as damaged."""
    offset, _ = index(path.with_suffix(".idx"))[number]
    each = next(each for each in read_manifest(written.folder).splits["train"] if each.name.endswith(path.stem))
    key = parse(written.examples[each.first_example + number]).key
    return re.escape(f"{path} is damaged at offset {offset}: key {key!r}, record {number} ")


@pytest.mark.integration
def test_every_byte_flipped_in_turn(tiny: Written) -> None:
    """With ``stop`` the record is named, with ``skip`` it alone is left out."""
    path, stop, skip = tiny.slices[1], tiny.open(on_damage=STOP), tiny.open(on_damage=SKIP)
    assert sorted(tiny.numbers(tiny.read(stop))) == sorted(tiny.examples)
    left_out = dict[int, int]()
    for place in range(path.stat().st_size):
        flip(path, place, 1 << place % 8)
        with pytest.raises(DataError, match=damaged_at(path, place // 237, tiny)):
            list(tiny.read(stop, batch=2))
        batches = list(tiny.read(skip, batch=2))
        assert [each.skipped for each in batches].count(1) == sum(each.skipped for each in batches) == 1
        (missing,) = set(tiny.examples) - set(tiny.numbers(batches))
        left_out[missing] = left_out.get(missing, 0) + 1
        flip(path, place, 1 << place % 8)
    assert list(left_out.values()) == [237] * 3
    assert sorted(tiny.numbers(tiny.read(stop))) == sorted(tiny.examples)


def test_damage_is_handed_out_where_nothing_is_checked(tiny: Written) -> None:
    """And is seen by what the other tests compare with."""
    flip(tiny.slices[1], 50, 1)
    with pytest.raises(AssertionError):
        list(tiny.read(tiny.open(check=False)))


def test_every_bit_of_an_index_flipped_in_turn(tiny: Written) -> None:
    path = tiny.slices[1].with_suffix(".idx")
    refused = 0
    for place in range(path.stat().st_size):
        for bit in range(8):
            flip(path, place, 1 << bit)
            try:
                assert sorted(tiny.numbers(tiny.read(tiny.open()))) == sorted(tiny.examples)
            except DataError as error:
                assert f"{path}" in str(error) or f"the index of {path.with_suffix('.tfrecord')}" in str(error)
                refused += 1
            flip(path, place, 1 << bit)
    assert refused > path.stat().st_size * 8 * 0.9


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.chaos)])
def test_bytes_of_the_table_of_blocks_flipped_in_turn(every: int, tiny: Written) -> None:
    path = tiny.folder / "blocks.parquet"
    refused = 0
    places = range(0, path.stat().st_size, every)
    for place in places:
        flip(path, place, 1 << place % 8)
        try:
            assert sorted(tiny.numbers(tiny.read(tiny.open()))) == sorted(tiny.examples)
        except (DataError, EnvironmentFailure) as error:
            assert "blocks.parquet" in str(error) or "table of blocks" in str(error)
            refused += 1
        flip(path, place, 1 << place % 8)
    assert len(places) / 10 < refused < len(places)  # names and statistics in it are not read


def missing(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def not_a_table(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")


@pytest.mark.parametrize("harm", [missing, emptied, not_a_table])
@pytest.mark.parametrize("name", ["blocks.parquet", "train/train-00001-of-00002.idx"])
def test_a_table_or_index_that_is_none_is_named(name: str, harm: Callable[[Path], None], tiny: Written) -> None:
    harm(tiny.folder / name)
    with pytest.raises((DataError, EnvironmentFailure), match=re.escape(str(tiny.folder / name))):
        list(tiny.read(tiny.open()))


@pytest.mark.parametrize("harm", [missing, emptied, not_a_table])
def test_damage_is_named_without_the_table_of_examples(harm: Callable[[Path], None], tiny: Written) -> None:
    """Only the key is not known then."""
    harm(tiny.folder / EXAMPLES_FILE)
    flip(tiny.slices[0], 300, 1)
    with pytest.raises(DataError, match=re.escape(f"{tiny.slices[0]} is damaged at offset 237: key None, record 1 ")):
        list(tiny.read(tiny.open()))


def test_skipping_goes_to_its_limit(long: Written) -> None:
    """Steps stay equal, what is left out is counted, and one more than the limit ends it, wherever they lie."""
    places = [(0, 3), (0, 4), (0, 849), (1, 400)]
    for slice, number in places:
        offset, size = index(long.slices[slice].with_suffix(".idx"))[number]
        flip(long.slices[slice], offset + size // 2, 0x10)
    batches = list(long.read(long.open(on_damage=SKIP, skip_limit=4)))
    assert len(batches) == 34
    assert sum(each.skipped for each in batches) == 4
    assert len(long.numbers(batches)) == 1700 - 4
    with pytest.raises(DataError, match=r"is damaged at offset \d+: key .*one more than --skip-limit 3 allows"):
        list(long.read(long.open(on_damage=SKIP, skip_limit=3)))


def test_ranks_keep_in_step_where_one_skips(long: Written) -> None:
    offset, size = index(long.slices[0].with_suffix(".idx"))[0]
    flip(long.slices[0], offset + size // 2, 0x10)
    reader = long.open(on_damage=SKIP)
    ranks = [list(reader.batches(reader.order(0, 1), Steps(1700, 3, 50), rank)) for rank in range(3)]
    assert [len(own) for own in ranks] == [12] * 3
    assert sorted(sum(each.skipped for each in own) for own in ranks) == [0, 0, 1]
    assert len(long.numbers(each for own in ranks for each in own)) == 1699


# --- while it is read ---

# of a slice with four blocks, two at most are read ahead
LITTLE_AHEAD = {"lanes": 1, "budget_bytes": 150_000}


def begun(long: Written, batch: int = 10, **how: object) -> tuple[Path, Iterator[RecordBatch], list[RecordBatch]]:
    """The slice that is read first, what is left of the epoch, and the batch that was taken."""
    reader = long.open(**LITTLE_AHEAD, **how)
    order = reader.order(0, 1)
    assert order.window_blocks == 1
    first = long.slices[order.slices([(0, 1)])[0]]
    batches = long.read(reader, batch)
    return first, batches, [next(batches)]


def test_a_slice_is_truncated_while_it_is_read(long: Written) -> None:
    path, batches, taken = begun(long)
    os.truncate(path, 100_000)
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} is damaged at offset \d+: key '.*', record \d+ "):
        taken += batches
    assert 0 < len(long.numbers(taken)) < 850


def test_what_a_truncated_slice_lacks_is_skipped(long: Written) -> None:
    path, batches, taken = begun(long, on_damage=SKIP, skip_limit=10_000)
    os.truncate(path, 100_000)
    taken += batches
    assert len(taken) == 170
    assert len(long.numbers(taken)) + sum(each.skipped for each in taken) == 1700
    whole = sum(offset + size <= 100_000 for offset, size in index(path.with_suffix(".idx")))
    assert 850 + whole <= len(long.numbers(taken)) < 1700


def test_a_slice_is_overwritten_by_another_while_it_is_read(long: Written) -> None:
    """By one of whole records, of the same length: the table of examples tells them apart."""
    path, batches, taken = begun(long)
    other = next(each for each in long.slices if each != path)
    path.write_bytes(other.read_bytes())  # as it lies there: the file that is open changes
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} is damaged .*another record than was written there"):
        taken += batches
    assert 0 < len(long.numbers(taken)) < 850


def test_a_slice_is_replaced_by_another_while_it_is_read(long: Written) -> None:
    """The one that is open is read to its end; the next epoch finds the other."""
    path, batches, taken = begun(long)
    shutil.copy(next(each for each in long.slices if each != path), path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    taken += batches
    assert sorted(long.numbers(taken)) == sorted(long.examples)
    with pytest.raises(DataError, match=rf"{re.escape(str(path))} is damaged at offset \d+: key "):
        list(long.read(long.open()))


def test_a_slice_is_deleted_while_it_is_read(long: Written) -> None:
    path, batches, taken = begun(long)
    for each in long.slices:
        each.unlink()
    other = next(each for each in (long.folder / "train").glob("*.idx") if each.stem != path.stem)
    with pytest.raises(DataError, match=re.escape(f"{other.with_suffix('.tfrecord')} is missing")):
        taken += batches
    assert len(long.numbers(taken)) == 850


# --- copies in the cache ---


@pytest.fixture
def cache(long: Written, tmp_path: Path) -> Iterator[SliceCache]:
    """Holds every slice."""
    with SliceCache(tmp_path / "cache", 10**9) as cache:
        for each in read_manifest(long.folder).splits["train"]:
            cache.fetch(open_place(str(long.folder)), each)
        yield cache


def test_copies_are_read_in_place_of_slices(long: Written, cache: SliceCache) -> None:
    for path in long.slices:
        path.unlink()
    assert sorted(long.numbers(long.read(long.open(cache=cache)))) == sorted(long.examples)


@pytest.mark.parametrize(
    "harm",
    [emptied, lambda path: os.truncate(path, 100_000), lambda path: flip(path, 100_000, 1)],
    ids=["emptied", "truncated", "flipped"],
)
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_damaged_copy_is_not_read_on(
    when: str, harm: Callable[[Path], None], long: Written, cache: SliceCache, tmp_path: Path
) -> None:
    copies = sorted((tmp_path / "cache").glob("*.tfrecord"))
    assert len(copies) == 2
    reader = long.open(**LITTLE_AHEAD, cache=cache)
    batches = long.read(reader)
    taken = [next(batches)] if when == "while" else []
    for path in copies:
        harm(path)
    taken += batches
    assert sorted(long.numbers(taken)) == sorted(long.examples)
    if when == "while":
        assert not all(path.exists() for path in copies)  # what was found damaged is gone


def test_a_second_epoch_reads_nothing_but_copies(long: Written, tmp_path: Path) -> None:
    with SliceCache(tmp_path / "cache", 10**9) as cache:
        reader = long.open(cache=cache)
        assert sorted(long.numbers(long.read(reader))) == sorted(long.examples)
        assert cache._thread is not None
        while len(list((tmp_path / "cache").glob("*.tfrecord"))) < 2:
            cache._thread.join(0.01)
        for path in long.slices:
            path.unlink()
        assert sorted(long.numbers(long.read(reader))) == sorted(long.examples)

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
from etl.slices.manifest import Manifest, table_file
from etl.storage.place import open_place
from tests.lib.commands import copy_some
from tests.lib.inline import ingest_here, normalize_here, shard_here
from train.reader.batches import RecordBatch
from train.reader.cache import SliceCache
from train.reader.config import STOP, Reading
from train.reader.intervals import Steps
from train.reader.reader import SplitReader


@dataclass(frozen=True)
class Written:
    """Finished slices in ``folder``, whose training split was written as ``examples``, by their numbers."""

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
    found, keys = (
        dict[int, bytes](),
        parquet_tables.read_table(open_place(str(folder / table_file("examples"))), ["key"])["key"],
    )
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


def flip_record(written: Written, slice: int, number: int) -> Path:
    """Flip a bit in the middle of a record; returns the slice's file."""
    path = written.slices[slice]
    offset, size = index(path.with_suffix(".idx"))[number]
    flip(path, offset + size // 2, 0x10)
    return path


def test_damage_is_handed_out_without_checks(tiny: Written) -> None:
    """And is seen by what the other tests compare with."""
    flip(tiny.slices[1], 50, 1)
    with pytest.raises(AssertionError):
        list(tiny.read(tiny.open(check=False)))


def test_bytes_of_the_table_of_blocks_flipped_in_turn(tiny: Written) -> None:
    path = tiny.folder / "blocks.parquet"
    refused = 0
    places = range(0, path.stat().st_size, 7)
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


@pytest.mark.parametrize("harm", [None, missing, emptied, not_a_table])
def test_damage_is_named(harm: Callable[[Path], None] | None, tiny: Written) -> None:
    """Without the table of examples only the key is unknown."""
    path, first = flip_record(tiny, slice=1, number=1), read_manifest(tiny.folder).splits["train"][1].first_example
    if harm is not None:
        harm(tiny.folder / table_file("examples"))
    key = parse(tiny.examples[first + 1]).key if harm is None else None
    with pytest.raises(DataError, match=re.escape(f"{path} is damaged at offset 237: key {key!r}, record 1 ")):
        list(tiny.read(tiny.open(on_damage=STOP)))


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


def truncate(path: Path) -> None:
    os.truncate(path, 100_000)


def overwrite(path: Path) -> None:
    """With another slice, of whole records and the same length; the file that is open changes."""
    path.write_bytes(next(each for each in path.parent.glob("*.tfrecord") if each != path).read_bytes())


@pytest.mark.parametrize(("harm", "reason"), [(truncate, ""), (overwrite, "another record than was written there")])
def test_a_slice_is_damaged_while_it_is_read(harm: Callable[[Path], None], reason: str, long: Written) -> None:
    path, batches, taken = begun(long)
    harm(path)
    message = rf"{re.escape(str(path))} is damaged at offset \d+: key '.*', record \d+ .*{reason}"
    with pytest.raises(DataError, match=message):
        taken += batches
    assert 0 < len(long.numbers(taken)) < 850


def test_a_slice_is_deleted_while_it_is_read(long: Written) -> None:
    path, batches, taken = begun(long)
    for each in long.slices:
        each.unlink()
    other = next(each for each in (long.folder / "train").glob("*.idx") if each.stem != path.stem)
    with pytest.raises(DataError, match=re.escape(f"{other.with_suffix('.tfrecord')} is missing")):
        taken += batches
    assert len(long.numbers(taken)) == 850


# --- copies in the cache ---


@pytest.mark.parametrize("harm", [emptied, truncate, lambda path: flip(path, 100_000, 1)])
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_damaged_copy_is_not_read_on(when: str, harm: Callable[[Path], None], long: Written, tmp_path: Path) -> None:
    with SliceCache(tmp_path / "cache", 10**9) as cache:
        for each in read_manifest(long.folder).splits["train"]:
            cache.fetch(open_place(str(long.folder)), each)
        copies = sorted((tmp_path / "cache").glob("*.tfrecord"))
        assert len(copies) == 2
        batches = long.read(long.open(**LITTLE_AHEAD, cache=cache))
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

"""The reader on real slices: each example once, whatever ranks resume; of damage never a wrong record."""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations, count
from pathlib import Path
from unittest import mock

import pytest

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.formats import parquet_tables
from etl.formats.example import parse
from etl.slices.manifest import Manifest, table_file
from etl.storage.place import open_place
from tests.lib.commands import copy_some, flip_bit, wait_until
from tests.lib.inline import ingest_here, normalize_here, shard_here
from train.reader.batches import RecordBatch
from train.reader.cache import SliceCache
from train.reader.config import SKIP, STOP, ReaderOptions
from train.reader.intervals import Steps
from train.reader.reader import SplitReader
from train.reader.slice_file import SliceFile
from train.reader.state import ReaderState

TRAIN = 1437
RECORD_BYTES = 237  # of the tiny slices


def open_reader(folder: Path, **how: object) -> SplitReader:
    """Of the training split of these slices."""
    return SplitReader(open_place(str(folder)), read_manifest(folder), "train", ReaderOptions(**how))  # type: ignore[arg-type]


@pytest.mark.integration
@pytest.mark.parametrize("lanes", [1, 9])
def test_any_ranks_resume_with_what_is_left_and_the_same_with_the_same_batches(digits_root: Path, lanes: int) -> None:
    """From whichever step on, with what fills the last ones up."""
    reader = open_reader(digits_root / "slices/default", lanes=lanes)
    order = reader.order(0, 1)
    state, keys = ReaderState.of("these", "train", order), list[str]()
    for world_size, taken, batch in ((3, 7, 16), (64, 1, 16), (5, None, 61)):  # the last ones take the rest
        state = state.shared(world_size, reader.lanes(world_size), batch)
        step = state.steps.number if taken is None else taken
        for rank in range(world_size):
            batches = list(reader.batches(order, state.steps, rank, state.left))
            assert [len(each.examples()) for each in batches] == [batch] * state.steps.number
            keys += [
                parse(example).key
                for each in batches[:step]
                for example, weight in zip(each.examples(), each.weights, strict=True)
                if weight
            ]
            for first in range(state.steps.number + 1):
                rest = reader.batches(order, state.steps, rank, state.left, first)
                assert [each.examples() for each in rest] == [each.examples() for each in batches[first:]]
        state = state.after(step)
    assert len(keys) == len(set(keys)) == TRAIN


@dataclass(frozen=True)
class Written:
    """Finished slices in ``folder``, whose training split was written as ``examples``, by their numbers."""

    folder: Path
    examples: dict[int, bytes]

    @property
    def slices(self) -> list[Path]:
        return sorted((self.folder / "train").glob("*.tfrecord"))

    def open(self, **how: object) -> SplitReader:
        return open_reader(self.folder, **how)

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
    table = open_place(str(folder / table_file("examples")))
    found, keys = dict[int, bytes](), parquet_tables.read_table(table, ["key"])["key"]
    for each in read_manifest(folder).splits["train"]:
        data = (folder / f"{each.name}.tfrecord").read_bytes()
        lines = (folder / f"{each.name}.idx").read_text().splitlines()
        for number, line in enumerate(lines, each.first_example):
            offset, size = map(int, line.split())
            found[number] = data[offset + 12 : offset + size - 4]
            assert parse(found[number]).key == keys[number].as_py()
    return found


def read_manifest(folder: Path) -> Manifest:
    return Manifest.from_json(json.loads((folder / "manifest.json").read_text()))


def make_slices(source: Path, split: str, slices: int, *pixels: object) -> Path:
    """Slices of raw pixels, so many for training, of a root beside ``source``; returns their folder."""
    root = source.parent / "root"
    ingest_here(source, root)
    normalize_here(root, "--format", "raw", *pixels)
    shard_here(root, "--split", split, "--workers", 1, "--slices", slices)
    return root / "slices" / "default"


@pytest.fixture(scope="module")
def tiny_slices(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two training slices of three records each, of `RECORD_BYTES`."""
    source = copy_some(digits, tmp_path_factory.mktemp("tiny") / "source", "01", slice(5))
    return make_slices(source, "train=6,test=rest", 2, "--size", 4, "--color", "gray")


@pytest.fixture
def tiny(tiny_slices: Path, tmp_path: Path) -> Written:
    return Written(shutil.copytree(tiny_slices, tmp_path / "slices"), read_examples(tiny_slices))


@pytest.fixture(scope="module")
def long_slices(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two training slices of 850 records each, in four blocks."""
    source = tmp_path_factory.mktemp("long") / "source"
    source.symlink_to(digits)
    return make_slices(source, "train=1700,test=rest", 2, "--size", 4, "--color", "gray")


@pytest.fixture
def long(long_slices: Path, tmp_path: Path) -> Written:
    return Written(shutil.copytree(long_slices, tmp_path / "slices"), read_examples(long_slices))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": "ringslice.reader/0"}, UsageError, "this version reads 'ringslice.reader/3'"),
        ({"slices": "others"}, UsageError, r"that of other slices \(others, now these\)"),
        ({"split": "test"}, UsageError, r"that of another split \(test, now train\)"),
        ({"left": [[0, 4], [2, 6]]}, DataError, "not ascending intervals of 6 examples"),
        ({"seed": "x"}, DataError, "is damaged"),
        ({"lanes": 0}, DataError, "is damaged"),
        ({"taken": -1}, DataError, "is damaged"),
        ({"epoch": 0}, DataError, "is damaged"),
        ({"batch": math.inf}, DataError, "is damaged"),
        ({"left": [[0, 1.5]]}, DataError, "is damaged"),
    ],
)
def test_a_state_that_cannot_be_used_is_refused(
    change: dict[str, object], error: type[Exception], message: str, tiny: Written
) -> None:
    reader = tiny.open()
    stored = ReaderState.of("these", "train", reader.order(0, 1)).to_json()
    with pytest.raises(error, match=message):
        ReaderState.from_json(stored | change, "these", "train", reader.total)


def test_damage_is_handed_out_without_checks(tiny: Written) -> None:
    """The negative control: it is seen by what the other tests compare with."""
    flip_bit(tiny.slices[1], 50)
    with pytest.raises(AssertionError):
        list(tiny.read(tiny.open(check=False)))


def test_a_flipped_byte_or_a_truncation_costs_the_records_in_it_alone(tiny: Written) -> None:
    path, first = tiny.slices[1], sorted(tiny.examples)[3]
    sound = path.read_bytes()

    def require_all_but(*lost: int) -> None:
        assert sorted(tiny.numbers(tiny.read(tiny.open(on_damage=SKIP)))) == sorted({*tiny.examples} - {*lost})

    for place in range(0, len(sound), 7):
        flip_bit(path, place)
        require_all_but(first + place // RECORD_BYTES)
        flip_bit(path, place)
    for size in (0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 12, len(sound) - 1):
        path.write_bytes(sound[:size])
        require_all_but(*range(first + size // RECORD_BYTES, first + 3))


def test_any_damaged_records_are_left_out_and_padding_takes_their_places(tiny: Written) -> None:
    places = [(path, record * RECORD_BYTES + 100) for path in tiny.slices for record in range(3)]
    for damaged in chain.from_iterable(combinations(range(6), size) for size in range(6)):
        for each in damaged:
            flip_bit(*places[each])
        batches = list(tiny.read(tiny.open(on_damage=SKIP, lanes=2), batch=4))
        whole = [number for record, number in enumerate(sorted(tiny.examples)) if record not in damaged]
        assert sorted(tiny.numbers(batches)) == whole
        assert [len(each.numbers) for each in batches] == [4, 4]
        assert sum(each.skipped for each in batches) == len(damaged)
        for each in damaged:
            flip_bit(*places[each])


def test_a_rank_without_a_single_example_gets_repeats(tiny: Written) -> None:
    reader = tiny.open()
    ranks = [list(reader.batches(reader.order(0, 1), Steps(6, 8, 2), rank)) for rank in range(8)]
    assert [len(batches) for batches in ranks] == [1] * 8
    assert sorted(batch.weights.sum() for [batch] in ranks) == [0, 0, 1, 1, 1, 1, 1, 1]
    assert sorted(tiny.numbers(batch for [batch] in ranks)) == sorted(tiny.examples)
    assert all({*batch.examples()} <= {*tiny.examples.values()} for [batch] in ranks)


def test_more_damaged_records_than_may_be_skipped_end_the_reading(tiny: Written) -> None:
    for path in tiny.slices:
        flip_bit(path, 100)
    list(tiny.read(tiny.open(on_damage=SKIP, skip_limit=2)))
    with pytest.raises(DataError, match="2 are to be skipped, more than --skip-limit 1;"):
        list(tiny.read(tiny.open(on_damage=SKIP, skip_limit=1)))


def test_a_bit_that_flips_on_the_way_is_read_again(tiny: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    read, flipped = SliceFile.read, set[SliceFile]()

    def flicker(self: SliceFile, offset: int, room: memoryview) -> int:
        size = read(self, offset, room)
        if self not in flipped:
            flipped.add(self)
            room[30] ^= 1
        return size

    monkeypatch.setattr(SliceFile, "read", flicker)
    assert sorted(tiny.numbers(tiny.read(tiny.open()))) == sorted(tiny.examples)
    assert flipped


def test_a_connection_that_breaks_is_tried_again_from_there(
    long: Written, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At first, again at once, and in the middle of what is read."""
    calls, read = count(1), SliceFile._read_once

    def break_off(self: SliceFile, offset: int, room: memoryview) -> int:
        if next(calls) in (1, 2, 4):
            raise ConnectionResetError("it was reset")
        return read(self, offset, room[:10_000])

    monkeypatch.setattr(SliceFile, "_read_once", break_off)
    assert sorted(long.numbers(long.read(long.open(lanes=1)))) == sorted(long.examples)
    assert " answers again, after 3 tries" in capsys.readouterr().err
    calls = count(1)
    with pytest.raises(EnvironmentFailure, match=r"cannot be read at offset \d+ \(it was reset\)"):
        list(long.read(long.open(retry_s=0)))


def test_bytes_of_the_table_of_blocks_flipped_in_turn(tiny: Written) -> None:
    path = tiny.folder / "blocks.parquet"
    refused: list[str] = []
    places = range(0, path.stat().st_size, 7)
    for place in places:
        flip_bit(path, place)
        try:
            assert sorted(tiny.numbers(tiny.read(tiny.open()))) == sorted(tiny.examples)
        except (DataError, EnvironmentFailure) as error:
            refused.append(str(error))
        flip_bit(path, place)
    assert all("blocks.parquet" in line or "the table of blocks does not fit" in line for line in refused)
    assert any("the table of blocks does not fit" in line for line in refused)
    assert len(places) / 10 < len(refused) < len(places)  # names and statistics in it are not read


BLOCKS, INDEX = "blocks.parquet", "train/train-00001-of-00002.idx"
NOT_A_TABLE = b"PAR1" + bytes(100) + b"PAR1"


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        (BLOCKS, None, "PATH"),
        (INDEX, None, "PATH"),
        (INDEX, NOT_A_TABLE, "PATH"),
        (INDEX, b"0 1\n", "does not list 3 records"),
        (INDEX, b"0 one\n", "is not an index of 'offset size' lines"),
        (INDEX, b"0 2370\n237 237\n474 237\n", "does not fit blocks.parquet"),
        (INDEX, b"0 237\n237 236\n473 238\n", "the index of .* does not fit it"),
    ],
)
def test_a_table_or_index_that_does_not_fit_is_named(
    name: str, content: bytes | None, line: str, tiny: Written
) -> None:
    path = tiny.folder / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((DataError, EnvironmentFailure), match=line.replace("PATH", re.escape(str(path)))):
        list(tiny.read(tiny.open()))


@pytest.mark.parametrize("is_known", [True, False])
def test_damage_is_named(is_known: bool, tiny: Written) -> None:
    """Without the table of examples only the key is unknown."""
    path, first = tiny.slices[1], read_manifest(tiny.folder).splits["train"][1].first_example
    flip_bit(path, RECORD_BYTES + 100)
    if not is_known:
        (tiny.folder / table_file("examples")).write_bytes(NOT_A_TABLE)
    key = parse(tiny.examples[first + 1]).key if is_known else None
    with pytest.raises(
        DataError, match=re.escape(f"{path} is damaged at offset {RECORD_BYTES}: key {key!r}, record 1 ")
    ):
        list(tiny.read(tiny.open(on_damage=STOP)))


# --- while it is read ---

# of a slice with four blocks, two at most are read ahead
LITTLE_AHEAD = {"lanes": 1, "budget_bytes": 150_000}


def begun(long: Written) -> tuple[Path, Iterator[RecordBatch], list[RecordBatch]]:
    """The slice that is read first, what is left of the epoch, and the batch that was taken."""
    reader = long.open(**LITTLE_AHEAD)
    order = reader.order(0, 1)
    assert order.window_blocks == 1
    first = long.slices[order.slices([(0, 1)])[0]]
    batches = long.read(reader, 10)
    return first, batches, [next(batches)]


def test_a_slice_is_overwritten_while_it_is_read(long: Written) -> None:
    """With another one, of whole records and the same length; the file that is open changes."""
    path, batches, taken = begun(long)
    path.write_bytes(next(each for each in long.slices if each != path).read_bytes())
    reason = "another record than was written there"
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


@pytest.mark.parametrize("harm", [lambda path: os.truncate(path, 100_000), lambda path: flip_bit(path, 100_000)])
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
        wait_until(lambda: len(list((tmp_path / "cache").glob("*.tfrecord"))) == 2)
        for path in long.slices:
            path.unlink()
        assert sorted(long.numbers(long.read(reader))) == sorted(long.examples)


def test_padding_does_not_take_the_place_of_the_slices_to_copy(tiny: Written, tmp_path: Path) -> None:
    """A batch without a whole example reads one of the epoch, whose slice is not what comes next."""
    for record in range(3):
        flip_bit(tiny.slices[0], record * RECORD_BYTES + 100)
    cache, asked = SliceCache(tmp_path / "cache", 10**9), []
    with mock.patch.object(cache, "fetch_ahead", lambda folder, slices: asked.append(len(slices))):
        list(tiny.read(tiny.open(cache=cache, on_damage=SKIP), batch=1))
    assert asked == [2]

"""The reader on real slices: each example once, whatever ranks resume from its state."""

import json
import random
import shutil
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import DataError, UsageError
from etl.formats.example import parse
from etl.slices.manifest import Manifest
from etl.storage.place import open_place
from train.reader.batches import RecordBatch
from train.reader.config import Reading
from train.reader.intervals import Steps, length
from train.reader.reader import SplitReader
from train.reader.slice_file import SliceFile
from train.reader.state import ReaderState

pytestmark = pytest.mark.integration

TRAIN = 1437


def open_reader(folder: Path, split: str = "train", reading: Reading | None = None) -> SplitReader:
    return SplitReader(open_place(str(folder)), read_manifest(folder), split, reading)


def keys_of(batches: Iterable[RecordBatch]) -> list[str]:
    """The keys of these batches' examples, repeats left out."""
    return [
        parse(example).key
        for batch in batches
        for example, weight in zip(batch.examples(), batch.weights, strict=True)
        if weight
    ]


def read_manifest(folder: Path) -> Manifest:
    return Manifest.from_json(json.loads((folder / "manifest.json").read_text()))


@pytest.fixture(scope="session")
def slices(digits_root: Path) -> Path:
    return digits_root / "slices" / "default"


@settings(max_examples=25)
@given(
    changes=st.lists(st.tuples(st.integers(1, 64), st.integers(0, 30)), min_size=1, max_size=5), lanes=st.integers(1, 9)
)
def test_readers_resume_with_any_number_of_ranks(slices: Path, changes: Sequence[tuple[int, int]], lanes: int) -> None:
    """World sizes and the steps taken at each; then one rank takes the rest."""
    reader = open_reader(slices, reading=Reading(lanes=lanes))
    state = ReaderState.of("these", "train", reader.order(0, 1))
    keys: list[str] = []
    for world_size, most in [*changes, (1, TRAIN)]:
        stored = json.dumps(state.to_json())
        assert len(stored) < 340 + 30 * (1 + lanes * sum(size for size, _ in changes))
        state = ReaderState.from_json(json.loads(stored), "these", TRAIN)
        state = state.shared(world_size, reader.lanes(world_size), 16)
        order = reader.order(state.seed, state.epoch, state.window_blocks)
        steps, first = state.steps, state.taken
        step = min(most, steps.number - first)
        for rank in range(world_size):
            batches = list(islice(reader.batches(order, steps, rank, state.left, first), step))
            assert [len(batch.examples()) for batch in batches] == [16] * step
            keys += keys_of(batches)
        state = state.after(step)
        assert state.examples_left == length(state.rest) == TRAIN - len(keys)
    assert state.rest == ()
    assert len(keys) == len(set(keys)) == TRAIN


@pytest.mark.parametrize(("world_size", "lanes"), [(2, 4), (5, 9)])
def test_the_same_ranks_resume_with_the_same_batches(slices: Path, world_size: int, lanes: int) -> None:
    """From whichever step on, with what fills the last ones up."""
    reader = open_reader(slices, reading=Reading(lanes=lanes))
    order = reader.order(0, 1)
    state = ReaderState.of("these", "train", order).shared(world_size, reader.lanes(world_size), 61)
    steps = state.steps
    for rank in range(world_size):
        whole = [batch.examples() for batch in reader.batches(order, steps, rank, state.left)]
        for first in range(steps.number + 1):
            rest = [batch.examples() for batch in reader.batches(order, steps, rank, state.left, first)]
            assert rest == whole[first:]


def test_the_order_is_the_same_however_slow_the_storage_is(slices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_reader(slices, reading=Reading(lanes=4))
    order, steps = reader.order(0, 1), Steps(reader.total, 2, 32)

    def numbers() -> list[int]:
        return [int(each) for rank in (0, 1) for batch in reader.batches(order, steps, rank) for each in batch.numbers]

    undisturbed, read = numbers(), SliceFile.read
    generator = random.Random(0)

    def read_late(self: SliceFile, offset: int, room: memoryview) -> int:
        time.sleep(generator.random() / 20)
        return read(self, offset, room)

    monkeypatch.setattr(SliceFile, "read", read_late)
    assert numbers() == undisturbed == numbers()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": "ringslice.reader/0"}, UsageError, "this version reads 'ringslice.reader/3'"),
        ({"slices": "others"}, UsageError, r"that of other slices \(others, now these\)"),
        ({"left": [[0, 10], [5, 20]]}, DataError, "not ascending intervals of 1437 examples"),
        ({"left": None}, DataError, "is damaged"),
        ({"seed": "x"}, DataError, "is damaged"),
        ({"lanes": 0}, DataError, "is damaged"),
        ({"taken": -1}, DataError, "is damaged"),
    ],
)
def test_a_state_that_cannot_be_used_is_refused(
    slices: Path, change: dict[str, object], error: type[Exception], message: str
) -> None:
    reader = open_reader(slices)
    stored = ReaderState.of("these", "train", reader.order(0, 1)).to_json()
    with pytest.raises(error, match=message):
        ReaderState.from_json(stored | change, "these", reader.total)


def test_a_rank_without_a_single_example_gets_repeats(slices: Path) -> None:
    reader = open_reader(slices, "test")
    order, steps = reader.order(0, 0), Steps(180, 200, 4)
    batches = [list(reader.batches(order, steps, rank)) for rank in range(200)]
    assert sum(batch.weights.sum() for own in batches for batch in own) == 180
    assert min(own[0].weights.sum() for own in batches) == 0
    assert all(parse(example) for own in batches for batch in own for example in batch.examples())
    assert {len(own) for own in batches} == {1}


def test_tables_that_do_not_fit_are_refused(slices: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(slices, tmp_path / "slices")
    shutil.copy(folder / "blocks.parquet", folder / "whole.parquet")
    shutil.copy(folder / "class_counts.parquet", folder / "blocks.parquet")
    with pytest.raises(DataError, match=r"blocks\.parquet"):
        open_reader(folder).require()
    shutil.copy(folder / "whole.parquet", folder / "blocks.parquet")
    index = folder / "test" / "test-00000-of-00001.idx"
    whole = index.read_text()
    for wrong, message in (
        ("0 1\n", "does not list 180 records"),
        ("0 one\n", "is no index of 'offset size' lines"),
        (whole.replace("\n", "0\n", 1), "does not fit blocks.parquet"),
        (shifted(whole), "the index of .* does not fit it"),
    ):
        index.write_text(wrong)
        reader = open_reader(folder, "test")
        with pytest.raises(DataError, match=message):
            next(reader.batches(reader.order(0, 0), Steps(reader.total, 1, 10), 0))


def shifted(index: str) -> str:
    """The same index, with the bound between its first two records moved by a byte."""
    first, second, rest = index.split("\n", 2)
    (start, size), (_, next_size) = first.split(), second.split()
    return f"{start} {int(size) + 1}\n{int(start) + int(size) + 1} {int(next_size) - 1}\n{rest}"

"""What is left of an epoch: told, kept, and gone on with by other ranks, in this process and by real ones."""

import json
import random
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import DataError, UsageError
from tests.lib.commands import horovodrun, succeeded
from tests.lib.ranks.results import results_of
from tests.train.reader.test_reader import keys_of, open_reader
from train.reader.config import Reading
from train.reader.intervals import Steps, length
from train.reader.slice_file import SliceFile
from train.reader.state import ReaderState

pytestmark = pytest.mark.integration

TRAIN = 1437


@settings(deadline=None, max_examples=25)
@given(
    changes=st.lists(st.tuples(st.integers(1, 64), st.integers(0, 30)), min_size=1, max_size=5), lanes=st.integers(1, 9)
)
def test_readers_go_on_with_what_is_left(digits_root: Path, changes: Sequence[tuple[int, int]], lanes: int) -> None:
    """World sizes and the steps taken at each; then one rank takes the rest."""
    reader = open_reader(digits_root / "slices" / "default", reading=Reading(lanes=lanes))
    state = ReaderState.of("these", "train", reader.order(0, 1))
    keys: list[str] = []
    for world_size, most in [*changes, (1, TRAIN)]:
        told = json.dumps(state.to_json())
        assert len(told) < 340 + 30 * (1 + lanes * sum(size for size, _ in changes))
        state = ReaderState.from_json(json.loads(told), "these", TRAIN)
        state = state.shared(world_size, reader.lanes(world_size), 16)
        order = reader.order(state.seed, state.epoch, state.window_blocks)
        steps, first = state.steps, state.taken
        step = min(most, steps.number - first)
        for rank in range(world_size):
            keys += keys_of(islice(reader.batches(order, steps, rank, state.left, first), step))
        state = state.after(step)
        assert state.examples_left == length(state.rest) == TRAIN - len(keys)
    assert state.rest == ()
    assert len(keys) == len(set(keys)) == TRAIN


def test_real_ranks_go_on_with_what_is_left(digits_root: Path, tmp_path: Path) -> None:
    slices, state = digits_root / "slices" / "default", tmp_path / "state.json"
    state.write_text(json.dumps(ReaderState.of("these", "train", open_reader(slices).order(3, 2)).to_json()))
    turns = {"3:11": 3, "2:9": 2, f"4:{TRAIN}": 4}
    told = results_of(succeeded(horovodrun(4, "tests/lib/ranks/read_steps.py", slices, state, *turns)))
    keys: list[str] = []
    for turn, ranks in turns.items():
        assert len(told[turn]) == ranks
        assert len({each["step"] for each in told[turn]}) == 1
        keys += [key for each in told[turn] for key in each["keys"]]
    first, *others = (each["state"] for each in told["state"])
    assert others == [first] * 3
    assert ReaderState.from_json(first, "these", TRAIN).rest == ()
    assert len(keys) == len(set(keys)) == TRAIN


@pytest.mark.parametrize(("world_size", "lanes"), [(1, 1), (2, 4), (3, 2), (5, 9), (8, 3)])
def test_the_same_ranks_go_on_with_the_same_batches(digits_root: Path, world_size: int, lanes: int) -> None:
    """From whichever step on, with what fills the last ones up."""
    reader = open_reader(digits_root / "slices" / "default", reading=Reading(lanes=lanes))
    order = reader.order(0, 1)
    state = ReaderState.of("these", "train", order).shared(world_size, reader.lanes(world_size), 61)
    steps = state.steps
    for rank in range(world_size):
        whole = [batch.examples() for batch in reader.batches(order, steps, rank, state.left)]
        for first in range(steps.number + 1):
            rest = [batch.examples() for batch in reader.batches(order, steps, rank, state.left, first)]
            assert rest == whole[first:]


def test_the_order_is_the_same_however_slow_the_storage_is(digits_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_reader(digits_root / "slices" / "default", reading=Reading(lanes=4))
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
        ({"left": [[0, 10], [5, 20]]}, DataError, "no ascending intervals of 1437 examples"),
        ({"left": [[0, 1438]]}, DataError, "no ascending intervals of 1437 examples"),
        ({"left": [[0]]}, DataError, "is damaged"),
        ({"left": None}, DataError, "is damaged"),
        ({"seed": "x"}, DataError, "is damaged"),
        ({"window_blocks": 0}, DataError, "is damaged"),
        ({"world_size": 0}, DataError, "is damaged"),
        ({"lanes": 0}, DataError, "is damaged"),
        ({"batch": 0}, DataError, "is damaged"),
        ({"taken": -1}, DataError, "is damaged"),
        ({"taken": 1438}, DataError, "is damaged"),
    ],
)
def test_a_state_that_cannot_be_gone_on_with_is_refused(
    digits_root: Path, change: dict[str, object], error: type[Exception], message: str
) -> None:
    reader = open_reader(digits_root / "slices" / "default")
    told = ReaderState.of("these", "train", reader.order(0, 1)).to_json()
    with pytest.raises(error, match=message):
        ReaderState.from_json(told | change, "these", reader.total)

"""Batches drawn from windows in memory: lanes in turn, what fills a batch up, and what takes the place of damage."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import DataError
from etl.storage.place import open_place
from train.reader.batches import Drawing, RecordBatch, Spare
from train.reader.config import SKIP, STOP, Reading
from train.reader.damage import DamagedRecord
from train.reader.intervals import lane_runs
from train.reader.memory import Buffer
from train.reader.windows import Window

PLACE = open_place("/slices/train-0.tfrecord")


def data_of(number: int) -> bytes:
    """The serialized example of this number: of other sizes and other bytes than its neighbours'."""
    return b"%d " % number * (1 + number % 3)


def window(numbers: Sequence[int], damaged: Sequence[int] = ()) -> Window:
    """These examples, and which of them are damaged."""
    datas = [data_of(number) for number in numbers]
    buffer = Buffer(sum(map(len, datas)) or 1)
    buffer.view[: sum(map(len, datas))] = b"".join(datas)
    sizes = np.array([len(data) for data in datas], np.int64)
    places = [place for place, number in enumerate(numbers) if number in damaged]
    return Window(
        buffer.address + np.cumsum(sizes) - sizes,
        sizes,
        np.array(numbers, np.int64),
        {place: DamagedRecord(PLACE, numbers[place], 0, None, "torn") for place in places},
        (buffer,),
    )


def lanes_of(total: int, lanes: int, cut: int, damaged: Sequence[int] = ()) -> list[Iterator[Window]]:
    """Examples 0 to before ``total``, run by run for each lane, in windows of ``cut``."""
    return [
        iter([window(range(first, min(first + cut, stop)), damaged) for first in range(start, stop, cut)])
        for start, stop in lane_runs(total, lanes)
    ]


def drawing(lanes: list[Iterator[Window]], size: int, spare: Spare | None = None, **how: object) -> Drawing:
    return Drawing(lanes, size, Reading(**how), lambda: spare)  # type: ignore[arg-type]


def in_turn(total: int, lanes: int) -> list[int]:
    """The order in which examples are taken from lanes, one of each at a time."""
    runs = [list(range(*run)) for run in lane_runs(total, lanes)]
    return [runs[number % lanes][number // lanes] for number in range(total)]


def require_own_bytes(batch: RecordBatch) -> None:
    assert batch.examples() == [data_of(number) for number in batch.numbers.tolist()]


@given(total=st.integers(1, 60), lanes=st.integers(1, 5), cut=st.integers(1, 9), size=st.integers(1, 16))
def test_lanes_are_drawn_from_in_turn_and_repeats_have_no_weight(total: int, lanes: int, cut: int, size: int) -> None:
    drawn = drawing(lanes_of(total, lanes, cut), size)
    found: list[int] = []
    for first in range(0, total, size):
        real = min(size, total - first)
        batch = drawn.batch(real)
        require_own_bytes(batch)
        assert batch.weights.tolist() == [1] * real + [0] * (size - real)
        assert batch.numbers[real:].tolist() == [batch.numbers[0]] * (size - real)
        found += batch.numbers[:real].tolist()
    assert found == in_turn(total, lanes)


def test_a_batch_without_an_example_of_its_own_is_a_spare_ones_repeats() -> None:
    spare = Spare(np.frombuffer(data_of(7), np.uint8), 7)
    batch = drawing([iter([])], 3, spare).batch(0)
    require_own_bytes(batch)
    assert (batch.numbers.tolist(), batch.weights.tolist()) == ([7] * 3, [0] * 3)
    empty = drawing([iter([])], 3).batch(0)
    assert (empty.examples(), empty.weights.tolist()) == ([b""] * 3, [0] * 3)


@given(
    lanes=st.integers(1, 5),
    cut=st.integers(1, 9),
    damaged=st.lists(st.integers(0, 29), unique=True, max_size=29),
)
def test_damaged_records_alone_are_left_out_where_they_may_be(lanes: int, cut: int, damaged: list[int]) -> None:
    drawn = drawing(
        lanes_of(30, lanes, cut, damaged), 10, Spare(np.frombuffer(data_of(0), np.uint8), 0), on_damage=SKIP
    )
    batches = [drawn.batch(10) for _ in range(3)]
    order = in_turn(30, lanes)
    for first, batch in zip(range(0, 30, 10), batches, strict=True):
        wanted = order[first : first + 10]
        assert batch.weights.tolist() == [float(number not in damaged) for number in wanted]
        kept = batch.weights > 0
        assert batch.numbers[kept].tolist() == [number for number in wanted if number not in damaged]
        assert not set(batch.numbers[~kept].tolist()) & (set(damaged) - {0})
        require_own_bytes(batch)
    assert sum(batch.skipped for batch in batches) == len(damaged)


def test_damage_stops_the_reading_unless_it_may_be_skipped_so_often() -> None:
    def read(**how: object) -> None:
        drawn = drawing(lanes_of(30, 2, 4, [5, 6, 20]), 10, **how)  # type: ignore[arg-type]
        for _ in range(3):
            drawn.batch(10)

    with pytest.raises(DataError, match=r"is damaged at offset 0: key None, record 5 .*; repair it with"):
        read(on_damage=STOP)
    with pytest.raises(DataError, match="one more than --skip-limit 2 allows"):
        read(on_damage=SKIP, skip_limit=2)
    read(on_damage=SKIP, skip_limit=3)

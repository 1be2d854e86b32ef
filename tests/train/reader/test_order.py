"""The order of an epoch, its sharing and its steps, as arithmetic."""

import json
import tracemalloc
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.partition.shares import Integers
from train.reader.intervals import Interval, Steps, cut, lane_runs, left_after, length, share
from train.reader.order import EpochOrder
from train.reader.state import ReaderState

layouts = st.lists(
    st.lists(st.integers(1, 9), max_size=40).map(lambda sizes: np.array(sizes, dtype=np.int64)), min_size=1, max_size=6
)


def order_of(layout: list[Integers], seed: int, epoch: int, window_blocks: int = 16) -> EpochOrder:
    records = np.array([sizes.sum() for sizes in layout], dtype=np.int64)
    return EpochOrder(records, layout.__getitem__, seed, epoch, window_blocks=window_blocks)


def records(order: EpochOrder, intervals: list[Interval]) -> list[tuple[int, int]]:
    return [(stretch.slice, int(record)) for stretch in order.stretches(intervals) for record in stretch.records]


def taken_by(left: list[Interval], rank: int, world_size: int, lanes: int, taken: int) -> list[int]:
    """The positions that a rank takes, one by one, drawn from its lanes in turn as a reader does."""
    own = share(left, rank, world_size)
    runs = [positions(cut(own, *run)) for run in lane_runs(length(own), lanes)]
    return [runs[place % lanes][place // lanes] for place in range(min(taken, length(own)))]


def positions(intervals: list[Interval]) -> list[int]:
    return [position for first, last in intervals for position in range(first, last)]


@given(layout=layouts, seed=st.integers(0, 3), window_blocks=st.integers(1, 17), data=st.data())
def test_an_epoch_has_every_record_once_and_any_interval_is_that_part_of_it(
    layout: list[Integers], seed: int, window_blocks: int, data: st.DataObject
) -> None:
    order = order_of(layout, seed, 1, window_blocks)
    whole = records(order, [(0, order.total)])
    assert sorted(whole) == [
        (number, record) for number, sizes in enumerate(layout) for record in range(int(sizes.sum()))
    ]
    start = data.draw(st.integers(0, order.total))
    stop = data.draw(st.integers(start, order.total))
    assert records(order, [(start, stop)]) == whole[start:stop]
    assert order.slices([(start, stop)] if start < stop else []) == list(
        dict.fromkeys(number for number, _ in whole[start:stop])
    )


@settings(max_examples=60)
@given(total=st.integers(1, 1000), lanes=st.integers(1, 9), batch=st.integers(1, 20), data=st.data())
def test_every_example_comes_once_with_changing_world_sizes(
    total: int, lanes: int, batch: int, data: st.DataObject
) -> None:
    left: list[Interval] = [(0, total)]
    seen: list[int] = []
    bound = 1
    for _ in range(data.draw(st.integers(1, 5))):  # some steps at each world size, then go on with what is left
        world_size = data.draw(st.integers(1, 64))
        steps = Steps(length(left), world_size, batch)
        step = data.draw(st.integers(0, steps.number))
        ahead = data.draw(st.integers(0, world_size)) if step < steps.number else 0  # ranks that have taken one more
        taken = [step + (rank < ahead) for rank in range(world_size)]
        for rank in range(world_size):
            seen += taken_by(left, rank, world_size, lanes, steps.before(rank, taken[rank]))
        bound += world_size * lanes
        left = left_after(left, steps, lanes, taken)
        assert len(left) <= bound
        assert sorted(seen + positions(left)) == list(range(total))


@given(total=st.integers(0, 500), world_size=st.integers(1, 64), batch=st.integers(1, 40), drop=st.booleans())
def test_steps_are_equal_and_count_every_example_once(total: int, world_size: int, batch: int, drop: bool) -> None:
    steps = Steps(total, world_size, batch, drop)
    taken = [[steps.real(rank, step) for step in range(steps.number)] for rank in range(world_size)]
    assert sum(map(sum, taken)) == steps.examples
    assert all(any(own[step] for own in taken) for step in range(steps.number))
    if drop:
        assert all(real == batch for own in taken for real in own)
        assert total - steps.examples < (batch + 1) * world_size
    else:
        assert [sum(own) for own in taken] == [
            length(share([(0, total)], rank, world_size)) for rank in range(world_size)
        ]
        assert all(max(own) - min(own) <= 1 and max(own) <= batch for own in taken if own)


@given(
    total=st.integers(0, 300),
    sharing=st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(1, 40), st.booleans()),
    data=st.data(),
)
def test_what_is_taken_adds_up(total: int, sharing: tuple[int, int, int, bool], data: st.DataObject) -> None:
    """Step by step or at once, written and read back in between: what is left is what no rank has taken."""
    begin = ReaderState("these", "train", 0, 1, 16, ((0, total),)).shared(*sharing)
    state, steps_taken = begin, 0
    for _ in range(data.draw(st.integers(0, 4))):
        steps = data.draw(st.integers(0, begin.steps.number - steps_taken))
        steps_taken += steps
        state = ReaderState.from_json(json.loads(json.dumps(state.after(steps).to_json())), "these", "train", total)
    assert state == begin.after(steps_taken)
    assert state.taken == steps_taken
    taken = [sum(begin.steps.real(rank, step) for step in range(state.taken)) for rank in range(sharing[0])]
    assert state.examples_left == length(state.rest) == total - sum(taken)
    assert state.shared(*sharing) is state
    again = state.shared(sharing[0] + 1, *sharing[1:])
    assert (again.left, again.taken) == (state.rest, 0)


@pytest.mark.parametrize("layout", [[np.array([100], np.int64)], [np.full(20, 5, np.int64)] * 4])
def test_epochs_and_seeds_differ_and_repeat(layout: list[Integers]) -> None:
    """Also with one slice of one window, where only its records can come in another order."""

    def found() -> dict[tuple[int, int], list[tuple[int, int]]]:
        orders = {(seed, epoch): order_of(layout, seed, epoch) for seed in (0, 1) for epoch in (1, 2, 3)}
        return {key: records(order, [(0, order.total)]) for key, order in orders.items()}

    assert len({tuple(order) for order in found().values()}) == 6
    assert found() == found()


def test_neighbours_of_one_epoch_part_in_the_next() -> None:
    """Records that share a batch in one epoch lie in windows that are cut elsewhere in the next."""
    layout = [np.full(64, 8, dtype=np.int64)] * 2
    windows = []
    for epoch in (1, 2):
        stretches = order_of(layout, 0, epoch).stretches([(0, 1024)])
        windows.append(
            {(each.slice, int(record)): number for number, each in enumerate(stretches) for record in each.records}
        )
    together = [each for each in windows[0] if each[0] == 0 and windows[0][each] == windows[0][0, 100]]
    assert len({windows[1][each] for each in together}) > 1


def test_a_rank_reads_whole_slices_where_slices_are_a_multiple_of_ranks() -> None:
    order = order_of([np.array([5, 5, 2], dtype=np.int64)] * 8, 3, 1)
    slices = [order.slices(share([(0, 96)], rank, 4)) for rank in range(4)]
    assert [len(own) for own in slices] == [2, 2, 2, 2]
    assert set(chain(*slices)) == set(range(8))


def test_the_share_of_one_of_many_ranks_is_found_without_going_over_all_records() -> None:
    """10^9 records in 100,000 slices, 4,096 ranks."""
    asked: set[int] = set()

    def block_records(slice: int) -> Integers:
        asked.add(slice)
        return np.full(40, 250, dtype=np.int64)

    tracemalloc.start()
    order = EpochOrder(np.full(100_000, 10_000, dtype=np.int64), block_records, 0, 1)
    own = share([(0, order.total)], 4095, 4096)
    stretches = list(order.stretches(own))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(len(each.records) for each in stretches) == length(own) == 244141
    assert len(asked) <= 26
    assert peak < 200e6

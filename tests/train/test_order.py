"""The order of an epoch and its sharing, as arithmetic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.permute import Integers
from train.order import EpochOrder, Interval, Steps, cut, length, share

layouts = st.lists(
    st.lists(st.integers(1, 9), max_size=40).map(lambda sizes: np.array(sizes, dtype=np.int64)), min_size=1, max_size=6
)
intervals_ = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6)


def records(order: EpochOrder, intervals: list[Interval]) -> list[tuple[int, int]]:
    return [(stretch.slice, int(record)) for stretch in order.stretches(intervals) for record in stretch.records]


@settings(deadline=None)
@given(layout=layouts, seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_every_record_comes_exactly_once_in_an_epoch(layout: list[Integers], seed: int, epoch: int) -> None:
    order = EpochOrder(layout, seed, epoch)
    found = records(order, [(0, order.total)])
    assert sorted(found) == [
        (number, record) for number, sizes in enumerate(layout) for record in range(int(sizes.sum()))
    ]


@settings(deadline=None, max_examples=50)
@given(layout=layouts, world_size=st.integers(1, 64), data=st.data())
def test_shares_are_the_epoch_whatever_the_world_size_and_however_often_it_changes(
    layout: list[Integers], world_size: int, data: st.DataObject
) -> None:
    order = EpochOrder(layout, 1, 2)
    left: list[Interval] = [(0, order.total)]
    seen: list[tuple[int, int]] = []
    for _ in range(3):  # some steps at each world size, then go on with what is left at another
        shares = [share(left, rank, world_size) for rank in range(world_size)]
        lengths = [length(own) for own in shares]
        assert sum(lengths) == length(left)
        assert max(lengths) - min(lengths) <= 1
        taken = data.draw(st.integers(0, max(lengths)))
        left = []
        for own in shares:
            seen += records(order, cut(own, 0, taken))
            left += cut(own, taken, length(own))
        world_size = data.draw(st.integers(1, 64))
    seen += records(order, left)
    assert sorted(seen) == sorted(records(order, [(0, order.total)]))


@given(total=st.integers(1, 500), world_size=st.integers(1, 20), batch=st.integers(1, 40), drop=st.booleans())
def test_steps_are_equal_and_count_every_example_once(total: int, world_size: int, batch: int, drop: bool) -> None:
    steps = Steps(total, world_size, batch, drop)
    taken = [[steps.real(rank, step) for step in range(steps.number)] for rank in range(world_size)]
    for step in range(steps.number):
        assert steps.real_everywhere(step) == sum(own[step] for own in taken) > 0
    if drop:
        assert all(real == batch for own in taken for real in own)
        assert total - steps.number * batch * world_size < (batch + 1) * world_size
    else:
        assert [sum(own) for own in taken] == [
            length(share([(0, total)], rank, world_size)) for rank in range(world_size)
        ]


def test_epochs_and_seeds_differ_and_repeat() -> None:
    layout = [np.full(20, 5, dtype=np.int64)] * 4
    orders = {
        (seed, epoch): records(EpochOrder(layout, seed, epoch), [(0, 400)]) for seed in (0, 1) for epoch in (1, 2)
    }
    assert len({tuple(order) for order in orders.values()}) == 4
    assert orders[0, 1] == records(EpochOrder(layout, 0, 1), [(0, 400)])


def test_a_rank_reads_whole_slices_where_slices_are_a_multiple_of_ranks() -> None:
    order = EpochOrder([np.array([5, 5, 2], dtype=np.int64)] * 8, 3, 1)
    slices = [{number for number, _ in records(order, share([(0, 96)], rank, 4))} for rank in range(4)]
    assert [len(own) for own in slices] == [2, 2, 2, 2]
    assert set().union(*slices) == set(range(8))


@given(intervals_, st.integers(0, 100), st.integers(0, 100))
def test_cutting_intervals_is_cutting_their_positions(pairs: list[Interval], start: int, size: int) -> None:
    intervals = [(min(pair), max(pair)) for pair in pairs]
    positions = [position for first, last in intervals for position in range(first, last)]
    found = [position for first, last in cut(intervals, start, start + size) for position in range(first, last)]
    assert found == positions[start : start + size]


def test_a_rank_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 4 is not one of 4"):
        share([(0, 8)], 4, 4)

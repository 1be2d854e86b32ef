import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.partition.permutation import permutation, permute


@given(n=st.integers(1, 3000), seed=st.integers(0, 1000))
def test_every_value_comes_exactly_once(n: int, seed: int) -> None:
    assert sorted(permutation(n, seed).tolist()) == list(range(n))


@given(n=st.integers(1, 500), seed=st.integers(0, 10), data=st.data())
def test_any_part_can_be_had_alone(n: int, seed: int, data: st.DataObject) -> None:
    whole = permute(np.arange(n), n, "x", seed)
    assert sorted(whole.tolist()) == list(range(n))
    some = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), dtype=np.int64)
    assert permute(some, n, "x", seed).tolist() == whole[some].tolist()


def test_the_numbers_are_these_on_every_machine() -> None:
    assert permutation(10, "slices", 0, 1).tolist() == [8, 9, 4, 1, 2, 6, 3, 7, 0, 5]
    assert permute(np.array([0, 10**9]), 2 * 10**9, 7).tolist() == [1125894955, 526827283]


def test_seeds_differ() -> None:
    assert permutation(100, 1).tolist() != permutation(100, 2).tolist()
    assert permutation(100, np.int64(1)).tolist() == permutation(100, 1).tolist()
    assert permutation(100, "1").tolist() != permutation(100, 1).tolist()


def test_no_value_is_favoured() -> None:
    counts = np.zeros((8, 8))
    for seed in range(4000):
        counts[np.arange(8), permutation(8, seed)] += 1
    assert abs(counts / 4000 - 1 / 8).max() < 0.03  # six standard deviations


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 4, got 5"):
        permute(np.array([5]), 5, 0)

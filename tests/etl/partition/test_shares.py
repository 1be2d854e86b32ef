from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.partition.permutation import Integers
from etl.partition.shares import SharePlan, apportion, top_up

FRACTIONS = (
    [Fraction(1)],
    [Fraction(4, 5), Fraction(1, 10), Fraction(1, 10)],
    [Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)],
    [Fraction(99, 100), Fraction(1, 100)],
)


def split_counts(sizes: list[int], fractions: list[Fraction]) -> Integers:
    """Examples of each stratum in each split where nothing is known."""
    return top_up(np.zeros((len(sizes), len(fractions)), dtype=np.int64), sizes, fractions)


sizes_of_classes = st.lists(st.integers(0, 120), min_size=1, max_size=12)


@given(total=st.integers(0, 10**9), fractions=st.sampled_from(FRACTIONS))
def test_apportion_is_within_one_and_adds_up(total: int, fractions: list[Fraction]) -> None:
    counts = apportion(total, fractions)
    assert sum(counts) == total
    assert all(abs(count - total * fraction) < 1 for count, fraction in zip(counts, fractions, strict=True))


def test_the_largest_remainders_are_rounded_up_and_of_equal_ones_the_first() -> None:
    assert apportion(10, [Fraction(86, 100), Fraction(9, 100), Fraction(5, 100)]) == [9, 1, 0]
    assert apportion(7, [Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)]) == [4, 2, 1]
    assert apportion(2, [Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)]) == [1, 1, 0]


@given(sizes=sizes_of_classes, fractions=st.sampled_from(FRACTIONS))
def test_split_counts_are_a_controlled_rounding(sizes: list[int], fractions: list[Fraction]) -> None:
    counts = split_counts(sizes, fractions)
    assert counts.sum(axis=1).tolist() == sizes
    assert counts.sum(axis=0).tolist() == apportion(sum(sizes), fractions)
    for size, row in zip(sizes, counts.tolist(), strict=True):
        assert all(
            cell >= 0 and abs(cell - size * fraction) <= 1 for cell, fraction in zip(row, fractions, strict=True)
        )


def deal_everything(plan: SharePlan) -> list[tuple[Integers, Integers]]:
    sizes = plan.sizes.tolist()
    return [plan.assign(stratum, np.arange(size, dtype=np.int64)) for stratum, size in enumerate(sizes) if size]


@settings(max_examples=150)
@given(
    sizes=sizes_of_classes,
    fractions=st.sampled_from(FRACTIONS),
    slices=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    seed=st.integers(0, 3),
)
def test_totals_and_classes_are_within_one_on_every_slice(
    sizes: list[int], fractions: list[Fraction], slices: list[int], seed: int
) -> None:
    counts = split_counts(sizes, fractions)
    plan = SharePlan(counts, tuple(slices[: len(fractions)]), seed)
    dealt = np.zeros((len(sizes), sum(plan.slices)), dtype=np.int64)
    nonempty = [stratum for stratum, size in enumerate(sizes) if size]
    for stratum, (splits, numbers) in zip(nonempty, deal_everything(plan), strict=True):
        assert np.bincount(splits, minlength=len(fractions)).tolist() == counts[stratum].tolist()
        dealt[stratum] = np.bincount(numbers, minlength=sum(plan.slices))
    assert dealt.sum() == sum(sizes)
    assert dealt.sum(axis=0).tolist() == plan.slice_records().tolist()
    first = 0
    for number in plan.slices:
        own = dealt[:, first : first + number]
        assert np.ptp(own.sum(axis=0)) <= 1
        assert np.ptp(own, axis=1).max() <= 1
        first += number


def test_examples_without_a_slice_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a slice"):
        SharePlan(np.array([[3, 1]]), (1, 0), seed=0)

"""Shares as arithmetic, over classes of every imbalance, slices, groups, splits and seeds; and permutations."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import DataError
from etl.partition.config import SPLIT_NAMES
from etl.partition.shares import (
    Integers,
    SlicePlan,
    apportion,
    count_part,
    permutation,
    permute,
    split_sizes,
    top_up,
    worker_of,
)
from etl.slices.plan import assign_rows
from etl.slices.writer import slice_names

FRACTIONS = (
    [Fraction(1)],
    [Fraction(4, 5), Fraction(1, 10), Fraction(1, 10)],
    [Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)],
    [Fraction(99, 100), Fraction(1, 100)],
)


@given(total=st.integers(0, 10**9), fractions=st.sampled_from(FRACTIONS))
def test_apportion_is_within_one_and_adds_up(total: int, fractions: list[Fraction]) -> None:
    counts = apportion(total, fractions)
    assert sum(counts) == total
    assert all(abs(count - total * fraction) < 1 for count, fraction in zip(counts, fractions, strict=True))


def test_the_largest_remainders_are_rounded_up_and_of_equal_ones_the_first() -> None:
    assert apportion(10, [Fraction(86, 100), Fraction(9, 100), Fraction(5, 100)]) == [9, 1, 0]
    assert apportion(7, [Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)]) == [4, 2, 1]
    assert apportion(2, [Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)]) == [1, 1, 0]


@given(sizes=st.lists(st.integers(0, 120), min_size=1, max_size=12), fractions=st.sampled_from(FRACTIONS))
def test_split_counts_are_a_controlled_rounding(sizes: list[int], fractions: list[Fraction]) -> None:
    counts = top_up(np.zeros((len(sizes), len(fractions)), dtype=np.int64), sizes, fractions)
    assert counts.sum(axis=1).tolist() == sizes
    assert counts.sum(axis=0).tolist() == apportion(sum(sizes), fractions)
    assert counts.min() >= 0
    for size, row in zip(sizes, counts.tolist(), strict=True):
        assert all(abs(cell - size * fraction) <= 1 for cell, fraction in zip(row, fractions, strict=True))


@given(
    known=st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=8),
    data=st.data(),
    fractions=st.sampled_from([each for each in FRACTIONS if len(each) == 3]),
)
def test_new_examples_bring_splits_nearest_to_their_share(
    known: list[list[int]], data: st.DataObject, fractions: list[Fraction]
) -> None:
    free = data.draw(st.lists(st.integers(0, 60), min_size=len(known), max_size=len(known)))
    counts = top_up(np.array(known, dtype=np.int64), free, fractions)
    assert counts.min() >= 0
    assert counts.sum(axis=1).tolist() == free
    for have, size, more in zip(known, free, counts.tolist(), strict=True):
        whole = sum(have) + size
        for own, fraction, added in zip(have, fractions, more, strict=True):
            assert own + added <= max(Fraction(own), whole * fraction) + 1  # only what lacks is filled up


def test_small_additions_reach_every_split() -> None:
    """Three images a night, ten classes: rounding never favours one split for long."""
    have = np.zeros((10, 3), dtype=np.int64)
    for night in range(400):
        classes = (np.arange(3) + 3 * night) % 10
        have += top_up(have, np.bincount(classes, minlength=10).tolist(), FRACTIONS[1])
    assert have.sum(axis=0).tolist() == pytest.approx([960, 120, 120], abs=12)


@dataclass(frozen=True)
class Case:
    """Labels and splits of all images in order, where parts end, and what a plan is made for."""

    labels: Integers
    own: Integers
    cuts: tuple[int, ...]
    classes: int
    slices: dict[str, int]
    workers: int
    groups: int
    is_stratified: bool


@st.composite
def cases(draw: st.DrawFn, least_images: int = 0, least_slices: int = 1) -> Case:
    """Up to 5,000 images of up to 50 classes; all that is random beyond the sizes follows from one drawn seed."""
    classes = draw(st.integers(1, 50))
    most = draw(st.sampled_from([each for each in (1, 5, 60, 5000) if each >= least_images]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = random.pareto(draw(st.sampled_from([0.3, 1.0, 100.0])), classes) + 1e-9
    size = draw(st.integers(least_images, most))
    labels = random.choice(classes, size=size, p=weights / weights.sum()).astype(np.int64)
    own = random.integers(0, 3, len(labels))
    cuts = tuple(sorted(random.integers(0, len(labels) + 1, draw(st.integers(0, 4))).tolist()))
    workers = draw(st.sampled_from([1, 2, 4, 6, 8]))
    groups = draw(st.sampled_from([each for each in (1, 2, 3, 4) if workers % each == 0]))
    slices = {name: draw(st.integers(least_slices, 64)) for name in SPLIT_NAMES}
    slices["train"] = -(-slices["train"] // workers) * workers
    return Case(labels, own, cuts, classes, slices, workers, groups, draw(st.booleans()))


def assign(case: Case, seed: int = 0, cuts: tuple[int, ...] | None = None) -> tuple[SlicePlan, Integers]:
    """The slices of all images, assigned part by part."""
    bounds = pairwise([0, *(case.cuts if cuts is None else cuts), len(case.labels)])
    parts, tables, counts = [slice(*each) for each in bounds], list[pa.Table](), list[Integers]()
    for part in parts:
        labels, own = case.labels[part], case.own[part]
        facts = {
            name: np.bincount(labels[own == number], minlength=case.classes).tolist()
            for number, name in enumerate(SPLIT_NAMES)
        }
        counts.append(count_part(facts, case.classes))
        names = pa.array([SPLIT_NAMES[number] for number in own], pa.string())
        tables.append(pa.table({"label": pa.array(labels, pa.int32()), "split": names}))
    total = np.sum(counts, axis=0)
    slices = {name: case.slices[name] for name in split_sizes(total)}
    plan = SlicePlan.of(total, slices, seed, is_stratified=case.is_stratified)
    assigned = [
        assign_rows(plan, rows, {"first": first, "row": 0}, None)
        for rows, first in zip(tables, plan.firsts(counts), strict=True)
    ]
    assert np.concatenate([splits for splits, _ in assigned]).tolist() == case.own.tolist()
    return plan, np.concatenate([numbers for _, numbers in assigned])


def within_one(counts: Integers) -> bool:
    return bool((counts.max(axis=-1) - counts.min(axis=-1)).max(initial=0) <= 1)


@settings(max_examples=120)
@given(case=cases())
def test_everything_is_assigned_exactly_once_and_evenly(case: Case) -> None:
    try:
        plan, slices = assign(case)
    except DataError:
        assert not (case.own == 0).any()
        return
    names = slice_names({name: count for name, count in zip(SPLIT_NAMES, plan.slices, strict=True) if count}, 1, 1)
    assert [names[number][0] for number in slices] == [SPLIT_NAMES[number] for number in case.own]
    assert np.bincount(slices, minlength=len(names)).tolist() == plan.slice_records()
    first = 0
    for split, count in [(split, count) for split, count in enumerate(plan.slices) if count]:
        here = case.own == split
        groups, workers = (case.groups, case.workers) if split == 0 else (1, 1)
        places = np.array([worker_of(each, workers, groups) for each in range(count)])
        own = slices[here] - first
        for places_of_slices in (np.arange(count), places[:, 0], places[:, 0] + groups * places[:, 1]):
            size = int(places_of_slices.max()) + 1
            assert within_one(np.bincount(places_of_slices[own], minlength=size))
            if case.is_stratified:
                cells = case.labels[here] * size + places_of_slices[own]
                assert within_one(np.bincount(cells, minlength=case.classes * size).reshape(case.classes, size))
        first += count


@settings(max_examples=40)
@given(case=cases(), cut=st.integers(0, 5000))
def test_how_images_lie_in_parts_does_not_matter(case: Case, cut: int) -> None:
    if (case.own == 0).any():
        assert assign(case)[1].tolist() == assign(case, cuts=(min(cut, len(case.labels)),))[1].tolist()


@settings(max_examples=30)
@given(case=cases(least_images=501, least_slices=4))
def test_another_seed_assigns_otherwise(case: Case) -> None:
    assert assign(case, seed=7)[1].tolist() != assign(case, seed=8)[1].tolist()


def test_examples_without_a_split_or_a_slice_are_refused() -> None:
    with pytest.raises(DataError, match="2 images have no split of the source's own"):
        split_sizes(count_part({"train": [3, 1], "": [2, 0]}, 2))
    assert split_sizes(count_part({"train": [3], "test": [2]}, 2)) == {"train": 3, "test": 2}
    with pytest.raises(ValueError, match="needs a slice"):
        SlicePlan(np.array([[3], [1]]), (1, 0), seed=0)


@given(n=st.integers(1, 500), seed=st.integers(0, 10), data=st.data())
def test_any_part_can_be_had_alone(n: int, seed: int, data: st.DataObject) -> None:
    whole = permute(np.arange(n), n, "x", seed)
    assert sorted(whole.tolist()) == list(range(n))
    some = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), dtype=np.int64)
    assert permute(some, n, "x", seed).tolist() == whole[some].tolist()


def test_the_numbers_are_these_on_every_machine_and_others_by_another_seed() -> None:
    assert permutation(10, "slices", 0, 1).tolist() == [8, 9, 4, 1, 2, 6, 3, 7, 0, 5]
    assert permute(np.array([0, 10**9]), 2 * 10**9, 7).tolist() == [1125894955, 526827283]
    assert permutation(100, np.int64(1)).tolist() == permutation(100, 1).tolist()
    assert len({tuple(permutation(100, seed).tolist()) for seed in (1, 2, "1")}) == 3
    with pytest.raises(ValueError, match="from 0 to 4, got 5"):
        permute(np.array([5]), 5, 0)

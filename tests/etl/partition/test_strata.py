"""The plan of shares as arithmetic, over classes of every imbalance, slices, groups, splits and seeds."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.errors import DataError
from etl.partition.config import SPLIT_NAMES, Fractions, ShardConfig
from etl.partition.permutation import Integers
from etl.partition.shares import top_up, worker_of
from etl.partition.strata import SlicePlan, count_part, split_sizes
from etl.slices.plan import assign_rows
from etl.slices.writer import slice_names

FRACTIONS: tuple[Fractions, ...] = (
    {"train": Fraction(1)},
    {"train": Fraction(4, 5), "validation": Fraction(1, 10), "test": Fraction(1, 10)},
    {"train": Fraction(1, 3), "validation": Fraction(1, 3), "test": Fraction(1, 3)},
    {"train": Fraction(99, 100), "test": Fraction(1, 100)},
)


@dataclass(frozen=True)
class Case:
    """Labels and splits of all images in order, where parts end, and the configuration of a plan."""

    labels: Integers
    own: Integers
    cuts: tuple[int, ...]
    config: ShardConfig
    classes: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to 5,000 images of up to 50 classes; all that is random beyond the sizes follows from one drawn seed."""
    classes = draw(st.integers(1, 50))
    most = draw(st.sampled_from([1, 5, 60, 5000]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = random.pareto(draw(st.sampled_from([0.3, 1.0, 100.0])), classes) + 1e-9
    labels = random.choice(classes, size=draw(st.integers(0, most)), p=weights / weights.sum()).astype(np.int64)
    own = random.integers(0, 3, len(labels))
    cuts = tuple(sorted(random.integers(0, len(labels) + 1, draw(st.integers(0, 4))).tolist()))
    workers = draw(st.sampled_from([1, 2, 4, 6, 8]))
    groups = draw(st.sampled_from([each for each in (1, 2, 3, 4) if workers % each == 0]))
    config = ShardConfig(
        draw(st.sampled_from(["stratified", "uniform"])),
        None,
        {},
        workers=workers,
        groups=groups,
        seed=draw(st.integers(0, 5)),
    )
    slices = {name: draw(st.integers(1, 64)) for name in SPLIT_NAMES}
    slices["train"] = -(-slices["train"] // workers) * workers
    config = ShardConfig(**{**vars(config), "slices": slices})
    return Case(labels, own, cuts, config, classes)


def deal(
    case: Case, seed: int | None = None, cuts: tuple[int, ...] | None = None
) -> tuple[SlicePlan, Integers, Integers]:
    """Splits and slices of all images, dealt part by part."""
    parts = [np.arange(len(case.labels))[bounds] for bounds in _bounds(case, case.cuts if cuts is None else cuts)]
    counts = []
    for part in parts:
        facts = {
            name: np.bincount(case.labels[part][case.own[part] == number], minlength=case.classes).tolist()
            for number, name in enumerate(SPLIT_NAMES)
        }
        counts.append(count_part(facts, case.classes))
    total = np.sum(counts, axis=0)
    sizes = split_sizes(total)
    slices = {name: case.config.slices[name] for name in sizes}
    config = ShardConfig(**{**vars(case.config), "slices": slices} | ({} if seed is None else {"seed": seed}))
    plan = SlicePlan.of_total(config, total)
    dealt = []
    for part, first in zip(parts, plan.firsts(counts), strict=True):
        own = [SPLIT_NAMES[number] for number in case.own[part]]
        rows = pa.table({"label": pa.array(case.labels[part], pa.int32()), "split": pa.array(own, pa.string())})
        dealt.append(assign_rows(plan, rows, {"first": first, "row": 0}, None))
    return plan, *(np.concatenate(each) for each in zip(*dealt, strict=True))  # type: ignore[return-value]


def _bounds(case: Case, cuts: tuple[int, ...]) -> list[slice]:
    return [slice(start, stop) for start, stop in pairwise([0, *cuts, len(case.labels)])]


def within_one(counts: Integers) -> bool:
    """Whether any two entries of each row differ by at most one."""
    return bool((counts.max(axis=-1) - counts.min(axis=-1)).max(initial=0) <= 1)


@settings(max_examples=120)
@given(case=cases())
def test_everything_is_dealt_exactly_once_and_evenly(case: Case) -> None:
    try:
        plan, splits, slices = deal(case)
    except DataError:
        assert not (case.own == 0).any()
        return
    names = slice_names(dict(zip(plan.splits, plan.shares.slices, strict=True)), 1, 1)
    assert [plan.splits.index(names[number][0]) for number in slices] == splits.tolist()
    assert np.bincount(slices, minlength=len(names)).tolist() == plan.shares.slice_records().tolist()
    assert [SPLIT_NAMES.index(plan.splits[split]) for split in splits] == case.own.tolist()
    first = 0
    for number, count in enumerate(plan.shares.slices):
        here = splits == number
        groups, workers = (1, 1) if plan.splits[number] != "train" else (case.config.groups, case.config.workers)
        places = np.array([worker_of(each, workers, groups) for each in range(count)])
        own = slices[here] - first
        for places_of_slices in (np.arange(count), places[:, 0], places[:, 0] + groups * places[:, 1]):
            size = int(places_of_slices.max()) + 1
            assert within_one(np.bincount(places_of_slices[own], minlength=size))
            if case.config.partition == "stratified":
                cells = case.labels[here] * size + places_of_slices[own]
                assert within_one(np.bincount(cells, minlength=case.classes * size).reshape(case.classes, size))
        first += count


@settings(max_examples=40)
@given(case=cases(), cut=st.integers(0, 5000))
def test_how_images_lie_in_parts_does_not_matter(case: Case, cut: int) -> None:
    try:
        _, splits, slices = deal(case)
    except DataError:
        return
    again = deal(case, cuts=(min(cut, len(case.labels)),))
    assert again[1].tolist() == splits.tolist()
    assert again[2].tolist() == slices.tolist()


@settings(max_examples=30)
@given(case=cases().filter(lambda case: len(case.labels) > 500 and case.config.slices["train"] >= 4))
def test_another_seed_deals_otherwise(case: Case) -> None:
    assert deal(case, seed=7)[2].tolist() != deal(case, seed=8)[2].tolist()


@given(
    known=st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=8),
    data=st.data(),
    fractions=st.sampled_from([list(each.values()) for each in FRACTIONS if len(each) == 3]),
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
    fractions = [Fraction(4, 5), Fraction(1, 10), Fraction(1, 10)]
    for night in range(400):
        free = [0] * 10
        for image in range(3):
            free[(3 * night + image) % 10] += 1
        have += top_up(have, free, fractions)
    assert have.sum(axis=0).tolist() == pytest.approx([960, 120, 120], abs=12)


def test_images_without_a_split_are_refused() -> None:
    total = count_part({"train": [3, 1], "": [2, 0]}, 2)
    with pytest.raises(DataError, match="2 images have no split of the source's own"):
        split_sizes(total)
    assert split_sizes(count_part({"train": [3], "test": [2]}, 2)) == {"train": 3, "test": 2}

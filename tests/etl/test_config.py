import json
from typing import Any

import click
import pytest

from etl.errors import DataError, UsageError
from etl.images.config import Limits, NormalizeConfig
from etl.options.click_command import BYTES, COLOR, COUNTS, FRACTION, NUMBERS, SECONDS, SIZE
from etl.partition.config import ShardConfig, parse_split, resolve_slices


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "line"),
    [
        (SIZE, {"224": (224, 224), "64x48": (64, 48)}, ["", "0", "12x", "-3", "99999"], "invalid image size"),
        (BYTES, {"64MB": 64_000_000, "1.5KiB": 1536}, ["", "MB", "-1", "0", "3 parsecs", "9" * 400], "invalid size"),
        (
            COLOR,
            {"#ff8000": (255, 128, 0), "255, 128,0": (255, 128, 0)},
            ["", "red", "#fff", "1,2", "1,2,3,4", "1,2,256", "1,,2", "-1,2,3"],
            "invalid color",
        ),
        (NUMBERS, {"127.5": (127.5,), "-1,2e-3,0": (-1, 0.002, 0)}, ["", "a", "1,", "nan", "inf"], "a number"),
        (COUNTS, {"7": (7,), "1, 2": (1, 2)}, ["", "0", "1,", "a", "9" * 5000], "an integer >= 1"),
        (FRACTION, {"0": 0, "0.5": 0.5}, ["", "nan", "1.1", "-0.1"], "not a|range"),
        (SECONDS, {"0.5": 0.5}, ["0", "nan", "inf"], "not a|range"),
    ],
    ids=["size", "bytes", "color", "numbers", "counts", "fraction", "seconds"],
)
def test_values(kind: click.ParamType[Any], right: dict[str, Any], wrong: list[str], line: str) -> None:
    assert {text: kind.convert(text, None, None) for text in right} == right
    for text in wrong:
        with pytest.raises(click.BadParameter, match=line):
            kind.convert(text, None, None)


def test_splits_are_exact_fractions() -> None:
    assert parse_split("train=0.7,test=0.3") == {"train": "7/10", "test": "3/10"}
    assert parse_split("train=1/3,validation=2/3") == {"train": "1/3", "validation": "2/3"}
    assert parse_split("train=9e-1,test=1E-1") == {"train": "9/10", "test": "1/10"}
    assert parse_split("train=rest,test=10") == {"train": "rest", "test": 10}
    assert parse_split("source") == "source"
    assert parse_split("test=0,train=1") == {"train": "1"}


@pytest.mark.parametrize("share", ["8/10", "1/0", "0.8", "most"])
def test_a_share_of_an_edited_manifest_is_refused(share: str) -> None:
    with pytest.raises(DataError, match=f"the share '{share}' of a split is not one that shard writes"):
        ShardConfig(partition="uniform", split={"train": share}, slices={})


@pytest.mark.parametrize(
    "wrong", ["", "train", "train=0.5", "train=0.5,test=0.6", "train=0.5,dev=0.5", "test=1", "train=.5,train=.5"]
)
def test_wrong_splits_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError):
        parse_split(wrong)


@pytest.mark.parametrize("share", ["1e99999999", "0e9999999", "-0.5", "9" * 5000, "1/0", "nan", "\u00b2", ""])
def test_a_share_that_is_not_a_part_of_1_is_refused_at_once(share: str) -> None:
    with pytest.raises(ValueError, match=r"^'.*' is not a fraction from 0 to 1 for the split 'test'; give one such as"):
        parse_split(f"train=rest,test={share}")


@pytest.mark.parametrize(
    ("slices", "workers", "expected"), [(None, 8, 8), (3, 8, 8), (9, 8, 16), (5, 1, 5), (None, 1, 3)]
)
def test_training_slices_are_a_multiple_of_the_workers(slices: int | None, workers: int, expected: int) -> None:
    counts = {"train": 800, "validation": 100, "test": 100}
    found = resolve_slices(counts, 600_000_000, workers, slices, 200_000_000)
    assert found["train"] == expected
    assert 1 <= found["test"] <= expected


def test_a_configuration_comes_back_from_json() -> None:
    for config in (
        NormalizeConfig(8, 9, "pad", "gray", "jpeg", 80, 444, (1, 2, 3)),
        NormalizeConfig(8, 9, format="float16", subtract=(1, 2, 3), divide_by=(4, 5, 6), limits=Limits(frames=3)),
        NormalizeConfig(8, 9, "shorter", format="png", only_shrink=True, pass_through=True),
    ):
        assert NormalizeConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_sizes_differ_where_nothing_makes_them_equal() -> None:
    for fit, only_shrink in (("shorter", False), ("longest", False), ("crop", True)):
        assert NormalizeConfig(8, 8, fit, only_shrink=only_shrink).sizes_differ
    for fit, only_shrink in (("crop", False), ("pad", True)):
        assert not NormalizeConfig(8, 8, fit, only_shrink=only_shrink).sizes_differ


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"format": "raw", "pass_through": True}, "--pass-through with --format raw"),
        ({"format": "float32", "divide_by": (1.0, 2.0)}, "--divide-by has 2 numbers"),
        ({"format": "float32", "divide_by": (0.0,)}, "give other numbers"),
        ({"format": "float32", "divide_by": (7e-37,)}, "--divide-by 7e-37 give no float32 of some pixels"),
        ({"format": "png", "quality": 90}, "--quality has no effect with --format png"),
        ({"divide_by": (1.0,)}, "--divide-by has no effect with --format jpeg"),
        ({"format": "float16", "divide_by": (0.0038,)}, "--divide-by 0.0038 give no float16 of some pixels"),
    ],
)
def test_wrong_configurations_are_refused(change: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        NormalizeConfig(8, 8, **change)

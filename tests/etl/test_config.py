from fractions import Fraction

import pytest

from etl.config import parse_bytes, parse_size, parse_split, resolve_slices
from etl.errors import UsageError


def test_sizes() -> None:
    assert parse_size("224") == (224, 224)
    assert parse_size("64x48") == (64, 48)
    for wrong in ("", "0", "12x", "-3", "99999", "a"):
        with pytest.raises(ValueError, match=r"image size|out of range"):
            parse_size(wrong)


def test_bytes() -> None:
    assert parse_bytes("64MB") == 64_000_000
    assert parse_bytes("1.5KiB") == 1536
    for wrong in ("", "MB", "-1", "0", "3 parsecs"):
        with pytest.raises(ValueError, match=r"size in bytes|less than one"):
            parse_bytes(wrong)


def test_splits_are_exact_fractions() -> None:
    assert parse_split("train=0.7,test=0.3") == {"train": Fraction(7, 10), "test": Fraction(3, 10)}
    assert parse_split("train=1/3,validation=2/3") == {"train": Fraction(1, 3), "validation": Fraction(2, 3)}
    assert parse_split("source") == "source"
    assert parse_split("test=0,train=1") == {"train": Fraction(1)}


@pytest.mark.parametrize(
    "wrong",
    ["", "train", "train=0.5", "train=0.5,test=0.6", "train=0.5,dev=0.5", "test=1", "train=x", "train=.5,train=.5"],
)
def test_wrong_splits_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError):
        parse_split(wrong)


@pytest.mark.parametrize(
    ("slices", "workers", "expected"), [(None, 8, 8), (3, 8, 8), (9, 8, 16), (5, 1, 5), (None, 1, 3)]
)
def test_training_slices_are_a_multiple_of_the_workers(slices: int | None, workers: int, expected: int) -> None:
    counts = {"train": 800, "validation": 100, "test": 100}
    found = resolve_slices(counts, 600_000_000, workers, slices, 200_000_000)
    assert found["train"] == expected
    assert 1 <= found["test"] <= expected


def test_more_slices_than_examples_are_refused() -> None:
    with pytest.raises(UsageError, match="16 slices for 10 training examples"):
        resolve_slices({"train": 10}, 1000, 8, 16, 200_000_000)

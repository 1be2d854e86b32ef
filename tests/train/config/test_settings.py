"""Settings of a run: every value that cannot be is refused in one line, before TensorFlow is loaded."""

import math
from typing import Any

import click
import pytest

from etl.errors import UsageError
from train.config.recipe import Recipe
from train.config.settings import Settings
from train.config.stopping import Time
from train.reader.config import Reading


@pytest.mark.parametrize("value", [math.nan, math.inf, -1])
def test_a_stall_timeout_is_a_finite_number(value: float) -> None:
    with pytest.raises(UsageError, match=f"--stall-timeout {value} is out of range; give at least 0"):
        Settings("d", stall_timeout_s=value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0])
def test_a_read_timeout_is_a_finite_number(value: float) -> None:
    with pytest.raises(UsageError, match=f"--read-timeout {value} is out of range; give more than 0"):
        Reading(silence_s=value)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), (" 2h ", 7200)])
def test_a_time_has_a_unit_or_none(text: str, seconds: float) -> None:
    assert Time().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["500ms", "s", "", "nan", "inf", "-3m", "0", "1d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time; give seconds"):
        Time().convert(text, None, None)


@pytest.mark.parametrize("strategy", ["pipeline", "tensor-parallel"])
@pytest.mark.parametrize(
    "recipe", [Recipe(accumulate=2), Recipe(precision="float16"), Recipe(batch_norm="synchronised"), Recipe(xla=True)]
)
def test_parts_of_a_model_refuse_what_they_do_not_support(strategy: str, recipe: Recipe) -> None:
    with pytest.raises(UsageError, match=f"is not supported by --strategy {strategy}"):
        Settings("d", recipe, strategy=strategy)


def test_parts_of_a_model_have_options_of_their_own() -> None:
    own: dict[str, Any] = {"micro_batches": 8, "pipeline_schedule": "gpipe", "model_ranks": 2}
    Settings("d", strategy="pipeline", **own)
    for name, value in own.items():
        with pytest.raises(UsageError, match="is for --strategy pipeline"):
            Settings("d", strategy="ddp", **{name: value})
    for name in ("micro_batches", "model_ranks"):
        with pytest.raises(UsageError, match="out of range"):
            Settings("d", strategy="pipeline", **{**own, name: 0})

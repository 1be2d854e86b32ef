"""Losses that are not finite: none in float32; in float16 some, but not too many in a row."""

import math
from types import SimpleNamespace
from typing import cast

import keras
import pytest

from etl.errors import DataError
from train.trainer.divergence import MAX_NON_FINITE, MAX_SKIPPED_STEPS, LossCheck, SkipCheck
from train.trainer.session import Session


def session(precision: str) -> Session:
    settings = SimpleNamespace(recipe=SimpleNamespace(precision=precision))
    told = {"settings": settings, "run": "runs/mine", "optimizer": keras.optimizers.SGD(0.5), "is_root": True}
    return cast(Session, SimpleNamespace(**told))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_one_is_too_many(loss: float) -> None:
    check = LossCheck(session("float32"))
    check.add([1, 2], [0.5, 1e30])
    with pytest.raises(
        DataError, match=f"runs/mine has diverged: the loss is {loss} by step 4, at a learning rate of 0.5"
    ):
        check.add([3, 4], [0.5, loss])


def test_float16_ends_after_many_in_a_row() -> None:
    check = LossCheck(session("float16"))
    for begin in (0, 1000):  # a finite one begins the row anew
        check.add(range(begin, begin + MAX_NON_FINITE), [*[math.nan] * (MAX_NON_FINITE - 1), 1.0])
    check.add(range(2000, 2050), [math.inf] * 50)
    with pytest.raises(DataError, match="the loss is inf by step 2099 and of the 99 steps before"):
        check.add(range(2050, 2200), [math.inf] * 150)


def test_a_run_ends_after_many_steps_in_a_row_that_were_not_taken() -> None:
    check = SkipCheck(session("float32"))
    for step in range(2 * MAX_SKIPPED_STEPS):  # one that is taken begins the row anew
        check.add(step, is_skipped=step % MAX_SKIPPED_STEPS != 0)
    with pytest.raises(DataError, match="the gradients of the last 50 steps, up to step 100, are not finite"):
        check.add(2 * MAX_SKIPPED_STEPS, is_skipped=True)

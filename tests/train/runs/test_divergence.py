"""Losses that are not finite: none in float32; in float16 some, but not too many in a row."""

import math

import pytest

from train.runs.divergence import MAX_NON_FINITE, MAX_SKIPPED_STEPS, LossCheck, SkipCheck


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_one_is_too_many(loss: float) -> None:
    check = LossCheck(is_float16=False)
    assert check.add([1, 2], [0.5, 1e30]) == ""
    assert check.add([3, 4], [0.5, loss]) == f"the loss is {loss} by step 4"


def test_float16_ends_after_many_in_a_row() -> None:
    check = LossCheck(is_float16=True)
    for begin in (0, 1000):  # a finite one begins the row anew
        assert check.add(range(begin, begin + MAX_NON_FINITE), [*[math.nan] * (MAX_NON_FINITE - 1), 1.0]) == ""
    assert check.add(range(2000, 2050), [math.inf] * 50) == ""
    found = check.add(range(2050, 2200), [math.inf] * 150)
    assert found == "the loss is inf by step 2099 and of the 99 steps before"


def test_a_run_ends_after_many_steps_in_a_row_that_were_not_taken() -> None:
    check = SkipCheck()
    for step in range(2 * MAX_SKIPPED_STEPS):  # one that is taken begins the row anew
        assert check.add(step, is_skipped=step % MAX_SKIPPED_STEPS != 0) == ""
    found = check.add(2 * MAX_SKIPPED_STEPS, is_skipped=True)
    assert found.startswith("the gradients of the last 50 steps, up to step 100, are not finite")

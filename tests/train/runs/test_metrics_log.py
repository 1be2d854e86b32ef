"""When the ranks report."""

import math

import pytest

from train.runs.metrics_log import steps_to_report


@pytest.mark.parametrize(
    ("step_s", "left_s", "steps"),
    [(0.0, math.inf, 256), (0.001, math.inf, 256), (0.5, math.inf, 20), (11, math.inf, 1), (0.5, 3.0, 6), (0.5, -1, 1)],
)
def test_a_report_is_due_after_ten_seconds_or_at_the_end(step_s: float, left_s: float, steps: int) -> None:
    assert steps_to_report(step_s, left_s) == steps

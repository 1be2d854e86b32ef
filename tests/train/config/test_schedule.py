"""The learning rate: warm-up, decay, and what of both is the default."""

import math

import pytest

from train.config.recipe import Recipe
from train.config.schedule import Schedule

COSINE = Schedule(0.1, warmup_epochs=1, until=11)


@pytest.mark.parametrize(
    ("schedule", "global_batch", "rates"),
    [
        (COSINE, 8 * 256, {0: 0.1, 0.5: 0.45, 1: 0.8, 3.5: 0.4 * (1 + 0.5**0.5), 6: 0.4, 11: 0, 12: 0}),
        (COSINE, 4 * 256, {6: 0.2}),  # it follows the world size
        (COSINE, 128, {0: 0.005, 0.5: 0.0275, 1: 0.05}),  # a small batch warms up from a tenth
        (Schedule(0.1, 5, 90, "step", (30, 60, 80)), 8192, {5: 3.2, 29.9: 3.2, 30: 0.32, 60: 0.032, 89: 0.0032}),
        (Schedule(0.1, 0, 1, "none"), 512, {0.9: 0.2}),
    ],
)
def test_the_rate_warms_up_to_the_scaled_one_and_decays(
    schedule: Schedule, global_batch: int, rates: dict[float, float]
) -> None:
    assert {done: schedule.rate(done, global_batch) for done in rates} == pytest.approx(rates)


@pytest.mark.parametrize("epochs", [1, 3, 10])
@pytest.mark.parametrize("decay", ["cosine", "step", "none"])
def test_by_default_every_run_leaves_the_warm_up(epochs: int, decay: str) -> None:
    """In a fifth of its epochs, or 1; and a cosine reaches its end with the epochs."""
    schedule = Schedule.of(Recipe(decay=decay).resolved(epochs))
    peak = schedule.peak(1024)
    assert schedule.warmup_epochs == pytest.approx(min(1, epochs / 5))
    assert schedule.rate(schedule.warmup_epochs, 1024) == pytest.approx(peak)
    assert schedule.rate(0.5 * schedule.warmup_epochs, 1024) < peak
    assert schedule.rate(epochs, 1024) == pytest.approx(0 if decay == "cosine" else peak)


def test_what_is_given_is_taken_as_given() -> None:
    given = Recipe(lr=0.1, warmup_epochs=5, decay_until=2.5)
    assert given.resolved(10, {"warmup_epochs": 1.0, "decay_until": 10.0}) == given
    assert Recipe(warmup_epochs=0).resolved(10).warmup_epochs == 0
    assert Recipe(decay_until=2.5).resolved(10).warmup_epochs == 0.5


def test_a_run_keeps_the_schedule_that_it_was_begun_with() -> None:
    begun = Recipe().resolved(3)
    assert Recipe().resolved(20, begun.to_json()) == begun
    assert Recipe(decay="none").resolved(20, Recipe(decay="none").resolved(3).to_json()).warmup_epochs == 0.6
    assert Schedule.of(Recipe(decay="none").resolved(10)).until == math.inf

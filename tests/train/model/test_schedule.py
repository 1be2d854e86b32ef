"""The learning rate: warm-up, decay, and what of both is the default."""

import itertools
import math

import pytest

from train.config.recipe import Recipe
from train.model.schedule import Schedule


def test_the_rate_warms_up_to_the_scaled_one_and_decays() -> None:
    schedule = Schedule(0.1, warmup_epochs=1, until=11)
    rates = [schedule.rate(step / 10, global_batch=8 * 256) for step in range(110)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[5] == pytest.approx(0.45)
    assert rates[10] == pytest.approx(0.8)
    assert rates[60] == pytest.approx(0.4)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert 0 < rates[-1] < 0.001
    assert schedule.rate(6, global_batch=4 * 256) == pytest.approx(rates[60] / 2)  # it follows the world size
    assert Schedule(0.1, 0, 1, "none").rate(0.9, global_batch=512) == 0.2


def test_the_rate_of_a_small_batch_warms_up_from_a_tenth() -> None:
    schedule = Schedule(0.1, warmup_epochs=1, until=11)
    assert [schedule.rate(done, global_batch=128) for done in (0, 0.5, 1)] == pytest.approx([0.005, 0.0275, 0.05])


def test_the_rate_falls_by_steps() -> None:
    schedule = Schedule(0.1, 5, 90, "step", (30, 60, 80))
    rates = [schedule.rate(done, global_batch=8192) for done in (5, 29.9, 30, 59.9, 60, 80, 89)]
    assert rates == pytest.approx([3.2, 3.2, 0.32, 0.32, 0.032, 0.0032, 0.0032])


def test_the_share_of_the_peak_does_not_depend_on_the_batch_after_the_warm_up() -> None:
    schedule = Schedule(0.1, warmup_epochs=1, until=10)
    assert [schedule.share(done, 64) for done in (1, 5.5, 10, 12)] == pytest.approx([1, 0.5, 0, 0])
    assert schedule.share(5.5, 64) == pytest.approx(schedule.share(5.5, 4096))


@pytest.mark.parametrize("epochs", [1, 2, 3, 5, 10])
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
    given = Recipe(warmup_epochs=5, decay_until=2.5)
    assert given.resolved(10) == given
    assert given.resolved(10, {"warmup_epochs": 1.0, "decay_until": 10.0}) == given
    assert Recipe(warmup_epochs=0).resolved(10).warmup_epochs == 0
    assert Recipe(decay_until=2.5).resolved(10).warmup_epochs == 0.5


def test_a_run_keeps_the_schedule_that_it_was_begun_with() -> None:
    begun = Recipe().resolved(3)
    assert Recipe().resolved(20, begun.to_json()) == begun
    assert begun.resolved(20) == begun
    assert Recipe(decay="none").resolved(20, Recipe(decay="none").resolved(3).to_json()).warmup_epochs == 0.6


def test_what_does_not_decay_by_a_cosine_has_no_end() -> None:
    recipe = Recipe(decay="none").resolved(10)
    assert recipe.decay_until is None
    assert Schedule.of(recipe).until == math.inf

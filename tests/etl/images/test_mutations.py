"""Damaged images: good or a named reason, none too long, no word, no crash; each reproducible from its number alone.

python -m tests.lib.damage.trials tests.lib.damage.images:try_image 1234 1
"""

import pytest

from tests.lib.damage.images import try_image, try_picture
from tests.lib.damage.trials import run_trials
from tests.lib.pictures.table import pictures


@pytest.mark.parametrize(
    "trials", [pytest.param(500, marks=pytest.mark.integration), pytest.param(10_000, marks=pytest.mark.chaos)]
)
def test_damaged_images_are_good_or_have_a_reason(trials: int) -> None:
    outcomes = run_trials(try_image, trials)
    assert outcomes["good"] > trials // 50, "nothing is good: the damage is too coarse"
    assert len(outcomes) > 3


@pytest.mark.integration
def test_pictures_take_little_time_and_room_and_say_nothing() -> None:
    run_trials(try_picture, len(pictures()))

"""Damaged files: good or a named reason, none too long, no word, no crash; each reproducible from its number alone.

python -m tests.lib.damage.trials tests.lib.damage.images:try_image 1234 1
"""

import os
import signal

import pytest

from tests.lib.damage.images import try_image, try_picture
from tests.lib.damage.sources import try_container
from tests.lib.damage.trials import Trial, run_trials
from tests.lib.pictures.table import pictures

by_trial = pytest.mark.parametrize("trial", [try_image, try_container])


@pytest.mark.integration
@by_trial
def test_a_sample_of_damaged_files(trial: Trial) -> None:
    check(trial, 500)


@pytest.mark.chaos
@by_trial
def test_many_damaged_files(trial: Trial) -> None:
    check(trial, 10_000)


def check(trial: Trial, trials: int) -> None:
    report = run_trials(trial, 0, trials)
    assert report.faults == []
    assert report.outcomes.total() == trials
    assert report.outcomes["good"] > trials // 50, "nothing is good: the damage is too coarse"
    assert len(report.outcomes) > 1


@pytest.mark.integration
def test_pictures_take_little_time_and_room_and_say_nothing() -> None:
    report = run_trials(try_picture, 0, len(pictures()))
    assert report.faults == []
    assert report.outcomes.total() == len(pictures())


def misbehave(number: int) -> str:
    """Crash, print as a library in C does, and fail."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 3:
        os.write(2, b"premature end")
    return "good" if number != 4 else str(1 // 0)


@pytest.mark.integration
def test_what_must_not_be_is_noticed() -> None:
    """The negative control; what comes after a crash is tried as well."""
    report = run_trials(misbehave, 0, 6)
    expected = ["1: ended the process with status -11", "3: it printed 'premature end'", "4: ZeroDivisionError"]
    for fault, start in zip(report.faults, expected, strict=True):
        assert fault.startswith(start)
    assert report.outcomes.total() == 6

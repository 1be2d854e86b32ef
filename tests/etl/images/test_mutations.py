"""Damaged files: good or a named reason, none too long, no word, no crash; each reproducible from its number alone.

python -m tests.lib.damage.trials tests.lib.damage.images:try_image 1234 1
"""

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

from tests.lib.damage.images import (
    container_mutation,
    fill_memory,
    image_mutation,
    try_container,
    try_image,
    try_picture,
)
from tests.lib.damage.mutations import Mutation
from tests.lib.damage.trials import MOST_ALLOCATED_BYTES, MOST_BYTES, MOST_SECONDS, Report, Trial, run_trials
from tests.lib.pictures.file_parts import file_parts
from tests.lib.pictures.table import pictures

SAMPLE, ALL = 500, 10_000

by_trial = pytest.mark.parametrize("trial", [try_image, try_container])


@pytest.mark.integration
@by_trial
def test_a_sample_of_damaged_files(trial: Trial) -> None:
    check(run_trials(trial, 0, SAMPLE), SAMPLE)


@pytest.mark.integration
def test_pictures_take_little_time_and_room_and_say_nothing() -> None:
    report = run_trials(try_picture, 0, len(pictures()))
    assert report.faults == []
    assert report.outcomes.total() == len(pictures())


@pytest.mark.chaos
@by_trial
def test_many_damaged_files(trial: Trial) -> None:
    check(run_trials(trial, 0, ALL), ALL)


def check(report: Report, trials: int) -> None:
    assert report.faults == []
    assert report.outcomes.total() == trials
    assert report.outcomes["good"] > trials // 50, "nothing is good: the damage is too coarse to tell anything"
    assert len(report.outcomes) > 1


@pytest.mark.parametrize("mutation_of", [image_mutation, container_mutation])
def test_a_mutation_follows_from_its_number(mutation_of: Callable[[int], Mutation]) -> None:
    before = [mutation_of(number) for number in range(100)]
    assert [mutation_of(number) for number in reversed(range(100))] == before[::-1]
    assert len({each.data for each in before}) > 90


@pytest.mark.parametrize(
    ("name", "least"),
    [("jpeg-420", 8), ("png-animated", 8), ("gif-animated", 7), ("webp-animated", 5), ("tiff-lzw", 9), ("bmp-24", 9)],
)
def test_parts_are_those_of_the_format_and_joined_the_file(name: str, least: int) -> None:
    data = pictures()[name].data
    parts = file_parts(data)
    assert b"".join(parts) == data
    assert len(parts) >= least
    for length in range(0, len(data), 5):
        assert b"".join(file_parts(data[:length])) == data[:length]


def crash(number: int) -> str:
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return "good"


def chatter(number: int) -> str:
    os.write(2, b"premature end" if number == 3 else b"")  # as a library in C does
    return "good"


def grow(number: int) -> str:
    return "good" if number != 3 else f"{len(bytearray(MOST_ALLOCATED_BYTES))}"


def look_at_nothing(number: int) -> str:
    """As a decoder that returns memory which it has not written."""
    if number == 3:
        fill_memory(0x55)
        before = np.empty(5000, np.uint8)
        fill_memory(0xAA)
        assert np.array_equal(np.empty(5000, np.uint8), before)
    return "good"


def fail(number: int) -> str:
    return "good" if number != 3 else str(1 // 0)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("trial", "fault"),
    [
        (crash, "3: ended the process with status -11"),
        (chatter, "3: it printed 'premature end'"),
        (grow, "3: MemoryError"),
        (look_at_nothing, "3: AssertionError"),
        (fail, "3: ZeroDivisionError"),
    ],
)
def test_what_must_not_be_is_noticed(trial: Trial, fault: str) -> None:
    report = run_trials(trial, 0, 5)
    assert len(report.faults) == 1
    assert report.faults[0].startswith(fault)
    assert report.outcomes.total() == 5, "what comes after it was not tried"


def linger(number: int) -> str:
    if number == 3:
        signal.pause()
    return "good"


@pytest.mark.integration
def test_a_trial_that_hangs_is_noticed() -> None:
    (found,) = run_trials(linger, 0, 5, timeout_s=3).faults
    assert found.startswith("3: does not end in 3 s")


def test_what_takes_too_long_or_too_much_is_noticed() -> None:
    report = Report()
    for number, (seconds, peak_bytes) in enumerate([(1.0, 1000), (MOST_SECONDS + 1, 1000), (1.0, 2 * MOST_BYTES)]):
        line = {"number": number, "outcome": "good", "fault": "", "seconds": seconds, "peak_bytes": peak_bytes}
        report.add(line)
    assert report.faults == ["1: it took 11.0 s", "2: a process grew to 2048 MiB"]
    assert (report.slowest, report.largest) == (1, 2)

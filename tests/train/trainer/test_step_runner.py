"""What the step runner gives, and when: the results of a step one step later, each once."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from train.input.feed import PixelBatch
from train.trainer.session import Session, Signal
from train.trainer.step_runner import StepResult, StepRunner

RANKS = 4


def session(audit: bool = False) -> Session:
    made = SimpleNamespace(
        optimizer=SimpleNamespace(learning_rate=0.0),
        settings=SimpleNamespace(audit=audit),
        read_signal=lambda mean: Signal(round(mean * RANKS)),
    )
    return cast(Session, made)


def numbered_step(skipped: int) -> Callable[..., Any]:
    """A step whose numbers tell which one it is: losses, hits and examples are those of its labels."""

    def step(pixels: Any, labels: Any, weights: Any, *, ends: Any, step: Any, before: Any) -> Any:
        signal = float(ends) / RANKS  # the mean of rank 0's and of those of the others, which are 0
        sums = [float(step), float(labels[0]), float(tf.reduce_sum(weights))]
        numbers = [*sums, signal, float(int(step) == skipped)]
        return tf.constant(numbers), tf.identity(before), tf.constant([10.0, 11.0, 13.0], tf.float64)

    return step


def batches(count: int) -> Iterator[PixelBatch]:
    for number in range(count):
        weights = tf.constant([1.0, 0.0])
        keys = tf.constant([f"key {number}", "padding"])
        yield PixelBatch(tf.zeros((2, 1, 1, 1)), tf.constant([number, 0]), weights, keys)


def results_of(runner: StepRunner, count: int, signals: dict[int, Signal]) -> list[list[StepResult]]:
    """What each call gave, the last one `finish`."""
    found = [
        runner.take(batch, step, 0.1 * step, signals.get(step, Signal.NONE))
        for step, batch in enumerate(runner.batches(batches(count)))
    ]
    return [*found, runner.finish()]


def test_results_are_those_of_the_step_before_and_each_is_given_once() -> None:
    runner = StepRunner(session(), numbered_step(skipped=2))
    told = results_of(runner, 4, {1: Signal.METRICS, 3: Signal.LAST})
    assert [[each.measured.step for each in results] for results in told] == [[], [1], [2], [3], [4]]
    found = [result for results in told for result in results]
    assert [each.measured.sums for each in found] == [(n, n, 1) for n in range(4)]
    assert [each.measured.rate for each in found] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert [each.signal for each in found] == [Signal.NONE, Signal.METRICS, Signal.NONE, Signal.LAST]
    assert [each.is_skipped for each in found] == [False, False, True, False]
    assert not runner.finish()


def test_a_step_after_the_end_of_another_gives_nothing_of_it_again() -> None:
    runner = StepRunner(session(), numbered_step(skipped=-1))
    for step, batch in enumerate(runner.batches(batches(3))):
        assert not runner.take(batch, step, 0.1, Signal.NONE)
        assert [each.measured.step for each in runner.finish()] == [step + 1]


def test_seconds_are_those_of_the_step_and_the_audit_has_the_keys_of_its_examples() -> None:
    runner = StepRunner(session(audit=True), numbered_step(skipped=-1))
    found = [result for results in results_of(runner, 2, {}) for result in results]
    assert [(each.measured.compute_s, each.measured.reduce_s) for each in found] == [(1.0, 2.0)] * 2
    assert all(each.measured.step_s >= each.measured.input_s >= 0 for each in found)
    assert [each.keys.numpy().tolist() for each in found] == [[b"key 0"], [b"key 1"]]
    assert np.all(StepRunner(session(), numbered_step(0)).finish() == [])

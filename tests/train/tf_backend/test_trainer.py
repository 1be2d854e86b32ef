"""What a trainer returns of its steps, and when: the results of a step one step later, each once."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from train.tf_backend.feed import PixelBatch
from train.tf_backend.trainer import Stepper


def numbered_step(skipped: int) -> Callable[..., Any]:
    """A step whose numbers identify it: losses, hits and examples are those of its labels."""

    def step(pixels: Any, labels: Any, weights: Any, *, step: Any, before: Any) -> Any:
        sums = [float(step), float(labels[0]), float(tf.reduce_sum(weights))]
        numbers = tf.constant([*sums, float(int(step) == skipped)])
        return numbers, tf.identity(before), tf.constant([10.0, 11.0, 13.0], tf.float64)

    return step


def batches(count: int) -> Iterator[PixelBatch]:
    for number in range(count):
        weights, keys = tf.constant([1.0, 0.0]), tf.constant([f"key {number}", "padding"])
        yield PixelBatch(tf.zeros((2, 1, 1, 1)), tf.constant([number, 0]), weights, keys)


def test_results_are_those_of_the_step_before_and_each_is_given_once() -> None:
    stepper = Stepper(numbered_step(skipped=2), SimpleNamespace(learning_rate=0.0), has_keys=True)
    outcome = [stepper.take(batch, step, 0.1 * step) for step, batch in enumerate(stepper.timed(batches(4)))]
    outcome.append(stepper.finish())
    assert [[each.measured.step for each in results] for results in outcome] == [[], [1], [2], [3], [4]]
    found = [result for results in outcome for result in results]
    assert [each.measured.sums for each in found] == [(n, n, 1) for n in range(4)]
    assert [each.measured.rate for each in found] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert [each.is_skipped for each in found] == [False, False, True, False]
    assert [(each.measured.compute_s, each.measured.reduce_s) for each in found] == [(1.0, 2.0)] * 4
    assert [each.keys for each in found] == [[f"key {n}".encode()] for n in range(4)]
    assert not stepper.finish()

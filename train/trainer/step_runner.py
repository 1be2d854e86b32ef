"""Takes the training steps of an epoch and measures them; the results of a step are read one step later.

To read a number from a GPU waits for all that the GPU has to do. So the numbers of a step are given to the next step,
which copies them to the host while it computes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from train.runs.metrics import StepOfRank, now
from train.tf_backend.feed import PixelBatch
from train.trainer.session import Session
from train.trainer.steps import NO_NUMBERS


@dataclass(frozen=True)
class StepResult:
    """What this rank measured at a step, and the keys of its examples (a tensor of strings, or None).

    ``is_skipped``, equal on all ranks: its gradient was not finite.
    """

    measured: StepOfRank
    is_skipped: bool
    keys: Any


@dataclass(frozen=True)
class _Taken:
    """A step whose numbers are not read yet: when it ended, and the ``seconds`` of input, computing, reducing, and
    the whole.
    """

    step: int
    rate: float
    time: str
    seconds: tuple[float, ...]
    keys: Any


class StepRunner:
    """Takes steps with ``train_step`` of `compile_steps`."""

    def __init__(self, session: Session, train_step: Callable[..., Any]) -> None:
        self._session, self._train_step = session, train_step
        self._numbers = tf.constant(NO_NUMBERS)  # of the last step, on the device
        self._taken: _Taken | None = None
        self._input_s = 0.0
        self._over = time.perf_counter()  # when the last step was

    def batches(self, batches: Iterable[PixelBatch]) -> Iterator[PixelBatch]:
        """These batches; the time until one is there is the input of its step."""
        self._over = asked = time.perf_counter()
        for batch in batches:
            self._input_s = time.perf_counter() - asked
            yield batch
            asked = time.perf_counter()

    def take(self, batch: PixelBatch, steps: int, rate: float) -> list[StepResult]:
        """Take a step, after so many ``steps``; the result of the step before, if it is not known yet."""
        session = self._session
        session.optimizer.learning_rate = rate
        inputs = {"step": tf.constant(steps), "before": self._numbers}
        self._numbers, before, moments = self._train_step(batch.pixels, batch.labels, batch.weights, **inputs)
        begun, computed, reduced = moments.numpy().tolist()
        results = self._results(before)
        last_over, self._over = self._over, time.perf_counter()
        seconds = self._input_s, computed - begun, reduced - computed, self._over - last_over
        keys = batch.keys[batch.weights > 0] if session.settings.audit else None
        self._taken = _Taken(steps + 1, rate, now(), seconds, keys)
        return results

    def finish(self) -> list[StepResult]:
        """Wait for the last step; its result, if it is not known yet."""
        return self._results(self._numbers)

    def _results(self, numbers: tf.Tensor) -> list[StepResult]:
        if self._taken is None:
            return []
        taken, self._taken = self._taken, None
        *sums, skips = numbers.numpy().tolist()
        measured = StepOfRank.of(taken.step, taken.rate, sums, taken.seconds, taken.time)
        return [StepResult(measured, skips > 0, taken.keys)]

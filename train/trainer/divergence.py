"""Ends a run that has diverged: on every rank, because all have the same numbers, and in one line of rank 0."""

import math
from collections.abc import Sequence

import tensorflow as tf

from etl.errors import DataError
from train.config.recipe import FLOAT16
from train.trainer.session import Session

MAX_NON_FINITE = 100  # steps in a row of float16, which takes no step if a gradient is not finite
MAX_SKIPPED_STEPS = 50  # in a row; the scale of a loss in float16 is right after half as many


def diverged(session: Session, what: str) -> DataError:
    """The error to raise for a training in which ``what`` happened; rank 0 tells it."""
    rate = float(session.optimizer.learning_rate.numpy())
    error = DataError(
        f"{session.run} has diverged: {what}, at a learning rate of {rate:.4g}; give a smaller --lr, a"
        " longer --warmup-epochs, or --clip-norm 1, and another --run"
    )
    error.told = not session.is_root
    return error


def require_finite_weights(session: Session, step: int) -> None:
    """Raise DataError unless all that a checkpoint of ``step`` would have is finite."""
    floating = [each for each in session.variables if tf.as_dtype(each.dtype).is_floating]
    checks = [tf.reduce_all(tf.math.is_finite(each.value)) for each in floating]
    for variable, is_finite in zip(floating, tf.stack(checks).numpy() if checks else (), strict=True):
        if not is_finite:
            raise diverged(session, f"{variable.path} is not finite at step {step}")


class LossCheck:
    """Raises DataError for the losses of steps, each over all ranks, that are not finite."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._in_a_row = 0

    def add(self, steps: Sequence[int], losses: Sequence[float]) -> None:
        """Take in the losses of the next ``steps``. In float16, some may be not finite, but not too many in a row."""
        most = MAX_NON_FINITE if self._session.settings.recipe.precision == FLOAT16 else 1
        for step, loss in zip(steps, losses, strict=True):
            self._in_a_row = 0 if math.isfinite(loss) else self._in_a_row + 1
            if self._in_a_row >= most:
                row = f" and of the {most - 1} steps before" if most > 1 else ""
                raise diverged(self._session, f"the loss is {loss} by step {step}{row}")


class SkipCheck:
    """Raises DataError for `MAX_SKIPPED_STEPS` steps in a row that were not taken."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._in_a_row = 0

    def add(self, step: int, is_skipped: bool) -> None:
        """Take in that ``step`` was taken, or not because its gradient is not finite."""
        self._in_a_row = self._in_a_row + 1 if is_skipped else 0
        if self._in_a_row >= MAX_SKIPPED_STEPS:
            raise diverged(
                self._session,
                f"the gradients of the last {self._in_a_row} steps, up to step {step}, are not finite, so these were"
                " not taken (--precision bfloat16 without --compression fp16 does not overflow)",
            )

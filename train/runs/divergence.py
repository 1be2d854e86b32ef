"""Ends a run that has diverged: on every rank, because all have the same numbers, and in one line of rank 0."""

import math
from collections.abc import Sequence

from etl.errors import DataError
from train.parallel.collective import Collective
from train.parallel.trainer import Trainer
from train.runs.run import Run

MAX_NON_FINITE = 100  # steps in a row of float16, which takes no step if a gradient is not finite
MAX_SKIPPED_STEPS = 50  # in a row; the scale of a loss in float16 is right after half as many


def diverged(run: Run, trainer: Trainer, collective: Collective, what: str) -> DataError:
    """The error to raise on every rank for a training in which ``what`` happened; rank 0 reports it."""
    error = DataError(
        f"{run.folder} has diverged: {what}, at a learning rate of {trainer.learning_rate:.4g}; give a smaller --lr, a"
        " longer --warmup-epochs, or --clip-norm 1, and another --run"
    )
    error.is_reported = not collective.is_root
    return error


class LossCheck:
    """Looks for losses of steps, each over all ranks, that are not finite: more than some in a row of float16."""

    def __init__(self, is_float16: bool) -> None:
        self._most = MAX_NON_FINITE if is_float16 else 1
        self._in_a_row = 0

    def add(self, steps: Sequence[int], losses: Sequence[float]) -> str:
        """What is wrong with the losses of the next ``steps``; empty if nothing is."""
        for step, loss in zip(steps, losses, strict=True):
            self._in_a_row = 0 if math.isfinite(loss) else self._in_a_row + 1
            if self._in_a_row >= self._most:
                row = f" and of the {self._most - 1} steps before" if self._most > 1 else ""
                return f"the loss is {loss} by step {step}{row}"
        return ""


class SkipCheck:
    """Looks for `MAX_SKIPPED_STEPS` steps in a row that were not taken."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def add(self, step: int, is_skipped: bool) -> str:
        """What is wrong after ``step``, which was not taken if ``is_skipped``; empty if nothing is."""
        self._in_a_row = self._in_a_row + 1 if is_skipped else 0
        if self._in_a_row < MAX_SKIPPED_STEPS:
            return ""
        return (
            f"the gradients of the last {self._in_a_row} steps, up to step {step}, are not finite, so these were"
            " not taken (--precision bfloat16 without --compression fp16 does not overflow)"
        )

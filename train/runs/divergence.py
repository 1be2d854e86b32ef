"""Ends a run that has diverged: on every rank, because all have the same numbers, and in one line of rank 0."""

from collections.abc import Sequence
from math import isfinite

from etl.errors import DataError
from train.parallel.collective import Collective
from train.parallel.trainer import Trainer
from train.runs.run import Run

MAX_SKIPPED_STEPS = 50  # in a row; the scale of a loss in float16 is right after half as many


def diverged(run: Run, trainer: Trainer, collective: Collective, what: str) -> DataError:
    """The error to raise on every rank for a training in which ``what`` happened; rank 0 reports it."""
    error = DataError(
        f"{run.folder} has diverged: {what}, at a learning rate of {trainer.learning_rate:.4g}; give a smaller --lr, a"
        " longer --warmup-epochs, or --clip-norm 1, and another --run"
    )
    error.is_reported = not collective.is_root
    return error


def check_losses(steps: Sequence[int], losses: Sequence[float]) -> str:
    """What is wrong with the losses of these ``steps``, each over all ranks; empty if all are finite. Pure."""
    found = (
        f"the loss is {loss} by step {step}" for step, loss in zip(steps, losses, strict=True) if not isfinite(loss)
    )
    return next(found, "")


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

"""When a run is over, and how an option gives a time. Pure, but for a clock that is handed in."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from etl.errors import UsageError
from train.config.recipe import MAX_VALUE

EPOCHS, STEPS, ACCURACY, NO_PROGRESS, TIME = "epochs", "steps", "accuracy", "no progress", "time"
UNITS_S = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Stopping:
    """A run is over after ``epochs``, or ``max_steps``; once the accuracy on the split that each epoch is judged by is
    ``until_accuracy`` (from 0 to 1); when ``patience`` epochs in a row were no better than one before; or
    ``max_time_s`` after this start of it. None: never for that reason.
    """

    epochs: int
    max_steps: int | None = None
    until_accuracy: float | None = None
    patience: int | None = None
    max_time_s: float | None = None

    def __post_init__(self) -> None:
        for flag, value in (("--epochs", self.epochs), ("--max-steps", self.max_steps), ("--patience", self.patience)):
            if value is not None and not 1 <= value <= MAX_VALUE:
                raise UsageError(f"{flag} {value} is out of range; give a number from 1 to {MAX_VALUE}")
        if self.until_accuracy is not None and not 0 < self.until_accuracy <= 1:
            raise UsageError(
                f"--until-accuracy {self.until_accuracy:g} is out of range; give a number above 0, up to 1"
            )

    def reason(self, epoch: int, step: int, scores: Sequence[float], seconds: float) -> str:
        """The reason why a run in ``epoch``, after ``step`` steps and ``seconds``, is over; empty if it is not.

        ``scores`` has the accuracy after each finished epoch: `scores_of`.
        """
        if self.until_accuracy is not None and scores and scores[-1] >= self.until_accuracy:
            return ACCURACY
        if self.patience is not None and epochs_without_progress(scores) >= self.patience:
            return NO_PROGRESS
        if epoch > self.epochs:
            return EPOCHS
        return self.reason_in_epoch(step, seconds)

    def reason_in_epoch(self, steps: int, seconds: float) -> str:
        """Likewise after so many steps, of what ends a run in mid-epoch too."""
        if self.max_steps is not None and steps >= self.max_steps:
            return STEPS
        if self.max_time_s is not None and seconds >= self.max_time_s:
            return TIME
        return ""


def scores_of(history: Sequence[Mapping[str, Any]], split: str) -> list[float]:
    """The accuracy after each epoch, on this ``split``."""
    return [each[f"{split}_accuracy"] for each in history if f"{split}_accuracy" in each]


def epochs_without_progress(scores: Sequence[float]) -> int:
    """How many of the last epochs were no better than the best before them."""
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0


class Time(click.ParamType[float]):
    """A time as seconds, or with s, m or h behind it."""

    name = "time"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        text = str(value).strip()
        unit = text[-1:] if text[-1:] in UNITS_S else ""
        try:
            seconds = float(text.removesuffix(unit)) * UNITS_S.get(unit, 1)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is not a time; give seconds, or something like 90m or 1.5h", parameter, context)
        return seconds

"""How far a run has come: what all its ranks agree on, and a checkpoint records. Pure; small JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from etl.errors import DataError
from train.reader.state import ReaderState

Metrics = dict[str, Any]
FIRST_EPOCH = 1


@dataclass(frozen=True)
class Position:
    """After ``step`` steps of the optimizer, in the epoch of ``reader``.

    ``totals`` are sums over the epoch so far and all ranks, as of the last report: of losses that are finite, of the
    examples that these are of, of hits, and of examples;
    ``trained`` the training metrics of the epoch if all its steps are taken and it is not yet evaluated, else empty;
    ``history`` the metrics of each epoch that is over; ``rolled_back`` counts steps that were taken and lost with a
    rank.
    """

    step: int
    reader: ReaderState
    totals: tuple[float, ...] = (0.0,) * 4
    trained: Metrics = field(default_factory=dict)
    history: tuple[Metrics, ...] = ()
    rolled_back: int = 0

    @property
    def epoch(self) -> int:
        """The epoch of the next step; they count from 1."""
        return self.reader.epoch

    @property
    def awaits_evaluation(self) -> bool:
        """True if all steps of the epoch are taken and it is not evaluated yet."""
        return bool(self.trained)

    @property
    def steps_left(self) -> int:
        """Steps of the epoch that are left."""
        return self.reader.steps.number - self.reader.taken

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step."""
        return self.epoch if self.totals[-1] else self.epoch - 1

    def epochs_done(self, total: int) -> float:
        """Epochs that are over, with the fraction of this one, of ``total`` examples."""
        return self.epoch - FIRST_EPOCH + 1 - self.reader.examples_left / total

    def epochs_after(self, steps: int, total: int, steps_of_epoch: int) -> float:
        """Likewise after so many more ``steps``, if a whole epoch has ``steps_of_epoch``."""
        state, over = self.reader, self.epoch - FIRST_EPOCH + 1
        left = state.steps.number - state.taken
        if steps >= left:
            return over + (steps - left) / steps_of_epoch
        return over - state.examples_left / total * (1 - steps / left)

    def after_step(self) -> Self:
        """After one more step."""
        return replace(self, step=self.step + 1, reader=self.reader.after(1))

    def add_totals(self, sums: tuple[float, ...]) -> Self:
        """With these sums, over all ranks, added to the totals."""
        return replace(self, totals=tuple(one + other for one, other in zip(self.totals, sums, strict=True)))

    def next_epoch(self, reader: ReaderState, metrics: Metrics) -> Self:
        """At the begin of the next epoch, that of ``reader``; ``metrics`` are those of this epoch's evaluation."""
        history = (*self.history, {"epoch": self.epoch, **self.trained, **metrics})
        return replace(self, reader=reader, totals=(0.0,) * 4, trained={}, history=history)

    def to_json(self) -> dict[str, Any]:
        """The position as JSON has it: the counterpart of `from_json`."""
        return {**vars(self), "reader": self.reader.to_json()}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], slices: str, total: int) -> Self:
        """The position that `to_json` gave; raises as `ReaderState.from_json` does."""
        try:
            reader = ReaderState.from_json(facts["reader"], slices, "train", total)
            totals = tuple(float(each) for each in facts["totals"])
            history = tuple(dict(each) for each in facts["history"])
            return cls(int(facts["step"]), reader, totals, dict(facts["trained"]), history, int(facts["rolled_back"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the position of a run is damaged ({error!r})") from None

"""The state of a reader: what is left of an epoch. Small JSON; any number of ranks goes on from it."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from etl.errors import DataError, UsageError
from train.intervals import Interval, length
from train.order import EpochOrder

FORMAT = "ringslice.reader/1"


@dataclass(frozen=True)
class ReaderState:
    """Where the reading of ``split`` of the slices with fingerprint ``slices`` is.

    ``left`` are the intervals of the epoch's order that no rank has taken, ascending; ``seed``, ``epoch`` and
    ``window_blocks`` decide the order.
    """

    slices: str
    split: str
    seed: int
    epoch: int
    window_blocks: int
    left: tuple[Interval, ...]

    @classmethod
    def of(cls, slices: str, split: str, order: EpochOrder, left: list[Interval] | None = None) -> Self:
        """The state within the epoch of ``order``; at its begin where ``left`` is not given."""
        intervals = [(0, order.total)] if left is None else left
        return cls(slices, split, order.seed, order.epoch, order.window_blocks, tuple(intervals))

    @property
    def examples_left(self) -> int:
        return length(self.left)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **vars(self), "left": [list(each) for each in self.left]}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], slices: str, total: int) -> Self:
        """The state that `to_json` told, of a split of ``total`` examples of these ``slices``.

        Raises UsageError where it is that of other slices or of another version, DataError where it is damaged.
        """
        if told.get("format") != FORMAT:
            raise UsageError(f"the reader's state has the format {told.get('format')!r}, this version reads {FORMAT!r}")
        if told.get("slices") != slices:
            raise UsageError(f"the reader's state is that of other slices ({told.get('slices')}, now {slices})")
        try:
            numbers = (int(told["seed"]), int(told["epoch"]), int(told["window_blocks"]))
            left = tuple((int(start), int(stop)) for start, stop in told["left"])
            state = cls(slices, str(told["split"]), *numbers, left)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the reader's state is damaged ({error!r})") from None
        bounds = [0, *(bound for each in left for bound in each), total]
        if any(later < earlier for earlier, later in itertools.pairwise(bounds)) or state.window_blocks < 1:
            raise DataError(
                f"the reader's state is damaged: {list(left)} are no ascending intervals of {total} examples"
            )
        return state

"""The state of a reader: what is left of an epoch. Small JSON; any number of ranks goes on from it."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Self

from etl.errors import DataError, UsageError
from train.reader.intervals import Interval, Steps, left_after, length
from train.reader.order import EpochOrder

FORMAT = "ringslice.reader/3"


@dataclass(frozen=True)
class ReaderState:
    """Where the reading of ``split`` of the slices with fingerprint ``slices`` is.

    ``left`` are the intervals of the epoch's order, ascending, that were shared out among ``world_size`` ranks of
    ``lanes`` lanes each, to be taken in steps of at most ``batch`` examples on each rank (see `Steps` for
    ``drop_last``); ``taken`` is how many of these steps were taken since. The same ranks go on with the very same
    batches, any others with what is left. ``seed``, ``epoch`` and ``window_blocks`` decide the order.
    """

    slices: str
    split: str
    seed: int
    epoch: int
    window_blocks: int
    left: tuple[Interval, ...]
    world_size: int = 1
    lanes: int = 1
    batch: int = 1
    drop_last: bool = False
    taken: int = 0

    @classmethod
    def of(cls, slices: str, split: str, order: EpochOrder) -> Self:
        """The state at the begin of the epoch of ``order``, not shared out yet."""
        return cls(slices, split, order.seed, order.epoch, order.window_blocks, ((0, order.total),))

    @property
    def steps(self) -> Steps:
        """The steps that the ranks take from when the epoch was shared out among them."""
        return Steps(length(self.left), self.world_size, self.batch, self.drop_last)

    @property
    def rest(self) -> tuple[Interval, ...]:
        """The intervals that no rank has taken."""
        return tuple(left_after(self.left, self.steps, self.lanes, [self.taken] * self.world_size))

    @property
    def examples_left(self) -> int:
        """How many examples of the epoch no rank has taken."""
        return self.steps.left(self.taken)

    def shared(self, world_size: int, lanes: int, batch: int, drop_last: bool = False) -> Self:
        """The state for so many ranks to go on from, in steps of ``batch`` examples on each: what is left is shared out
        again, unless all of these are unchanged.
        """
        if (world_size, lanes, batch, drop_last) == (self.world_size, self.lanes, self.batch, self.drop_last):
            return self
        return replace(
            self, left=self.rest, world_size=world_size, lanes=lanes, batch=batch, drop_last=drop_last, taken=0
        )

    def after(self, steps: int) -> Self:
        """The state once each rank has taken so many more steps."""
        return replace(self, taken=self.taken + steps)

    def after_batches(self, batches: int, processes: int) -> Self:
        """The state once so many neighbouring ``processes``, in turn, have given so many batches together."""
        rounds, more = divmod(batches, processes)
        if not more:
            return self.after(rounds)
        taken = [self.taken + rounds + (rank % processes < more) for rank in range(self.world_size)]
        left = tuple(left_after(self.left, self.steps, self.lanes, taken))
        return replace(self, left=left, world_size=1, lanes=1, batch=1, taken=0)

    def to_json(self) -> dict[str, Any]:
        """The state as JSON has it: the counterpart of `from_json`."""
        return {"format": FORMAT, **vars(self), "left": [list(each) for each in self.left]}

    @classmethod
    def from_json(cls, state: Mapping[str, Any], slices: str, split: str, total: int) -> Self:
        """The state that `to_json` gave, of a ``split`` of ``total`` examples of these ``slices``.

        Raises UsageError if it is that of others or of another version, DataError if it is damaged.
        """
        found_format = state.get("format") if isinstance(state, Mapping) else None
        if found_format != FORMAT:
            raise UsageError(f"the reader's state has the format {found_format!r}, this version reads {FORMAT!r}")
        if state.get("slices") != slices:
            raise UsageError(f"the reader's state is that of other slices ({state.get('slices')}, now {slices})")
        if state.get("split") != split:
            raise UsageError(f"the reader's state is that of another split ({state.get('split')}, now {split})")
        try:
            seed, epoch, window_blocks = (index(state[name]) for name in ("seed", "epoch", "window_blocks"))
            world_size, lanes, batch = (index(state[name]) for name in ("world_size", "lanes", "batch"))
            taken, drop_last = index(state["taken"]), bool(state["drop_last"])
            left = tuple((index(start), index(stop)) for start, stop in state["left"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the reader's state is damaged ({error!r})") from None
        bounds = [0, *(bound for each in left for bound in each), total]
        if any(later < earlier for earlier, later in itertools.pairwise(bounds)):
            raise DataError(
                f"the reader's state is damaged: {list(left)} are not ascending intervals of {total} examples"
            )
        found = cls(slices, split, seed, epoch, window_blocks, left, world_size, lanes, batch, drop_last)
        if min(epoch, window_blocks, world_size, lanes, batch) < 1 or not 0 <= taken <= found.steps.number:
            raise DataError(
                f"the reader's state is damaged: {epoch=}, {window_blocks=}, {world_size=}, {lanes=}, {batch=},"
                f" {taken=}"
            )
        return found.after(taken)

"""The state of a reader: what is left of an epoch. Small JSON; any number of ranks goes on from it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from etl.errors import DataError, UsageError
from train.reader.intervals import Interval, left_after, length
from train.reader.order import EpochOrder

FORMAT = "ringslice.reader/2"


@dataclass(frozen=True)
class ReaderState:
    """Where the reading of ``split`` of the slices with fingerprint ``slices`` is.

    ``left`` are the intervals of the epoch's order, ascending, that were shared out among ``world_size`` ranks of
    ``lanes`` lanes each, and ``taken`` is how many examples each of these has taken since, or all that it had. The same
    ranks go on with the very same batches, any others with what is left. ``seed``, ``epoch`` and ``window_blocks``
    decide the order.
    """

    slices: str
    split: str
    seed: int
    epoch: int
    window_blocks: int
    left: tuple[Interval, ...]
    world_size: int = 1
    lanes: int = 1
    taken: int = 0

    @classmethod
    def of(cls, slices: str, split: str, order: EpochOrder, left: Sequence[Interval] | None = None) -> Self:
        """The state within the epoch of ``order``, not shared out yet; at its begin where ``left`` is not given."""
        intervals = [(0, order.total)] if left is None else left
        return cls(slices, split, order.seed, order.epoch, order.window_blocks, tuple(intervals))

    @property
    def rest(self) -> tuple[Interval, ...]:
        """The intervals that no rank has taken."""
        return tuple(left_after(self.left, self.world_size, self.lanes, self.taken))

    @property
    def examples_left(self) -> int:
        total = length(self.left)
        share, longer = divmod(total, self.world_size)  # so many ranks have one more
        taken = min(self.taken, share) * (self.world_size - longer) + min(self.taken, share + 1) * longer
        return total - taken

    def shared(self, world_size: int, lanes: int) -> Self:
        """The state for so many ranks to go on from: what is left is shared out anew, unless they are as before."""
        if (world_size, lanes) == (self.world_size, self.lanes):
            return self
        return replace(self, left=self.rest, world_size=world_size, lanes=lanes, taken=0)

    def after(self, examples: int) -> Self:
        """The state once each rank has taken so many more examples."""
        return replace(self, taken=self.taken + examples)

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
            seed, epoch, window_blocks = (int(told[name]) for name in ("seed", "epoch", "window_blocks"))
            world_size, lanes, taken = (int(told[name]) for name in ("world_size", "lanes", "taken"))
            left = tuple((int(start), int(stop)) for start, stop in told["left"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the reader's state is damaged ({error!r})") from None
        bounds = [0, *(bound for each in left for bound in each), total]
        if any(later < earlier for earlier, later in itertools.pairwise(bounds)):
            raise DataError(
                f"the reader's state is damaged: {list(left)} are no ascending intervals of {total} examples"
            )
        if min(window_blocks, world_size, lanes) < 1 or taken < 0:
            raise DataError(f"the reader's state is damaged: {window_blocks=}, {world_size=}, {lanes=}, {taken=}")
        return cls(slices, str(told["split"]), seed, epoch, window_blocks, left, world_size, lanes, taken)

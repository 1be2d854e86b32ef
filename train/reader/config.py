"""How a rank reads: how many slices at once, within which memory, how carefully and how patiently."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from etl.errors import UsageError
from etl.slices.manifest import Slice
from train.reader.cache import COPY_BYTES, SliceCache
from train.reader.memory import room_bytes
from train.reader.order import WINDOW_BLOCKS

STOP, SKIP = "stop", "skip"
# Of the budget, what the windows that are being drained may take; the rest is for those that are read meanwhile.
DRAINED = 0.35
BATCHES = 11  # as strings of TensorFlow: queued, being made, being used, and what malloc keeps of those that are gone
OFFSET_BYTES = 16  # of a record's place in its slice, and of a temporary copy of it
LANE_BYTES = 1 << 20  # of a thread, its open file, and what parsing an index or a table leaves behind


@dataclass(frozen=True)
class ReaderOptions:
    """``budget_bytes`` bounds all that is read ahead and not yet taken by the training.

    ``check`` compares the CRC32C of each block. ``on_damage`` is ``stop`` or ``skip``; ``skip_limit`` is how many
    records a rank may skip in an epoch. After ``silence_s`` without a byte reading fails; a connection that breaks is
    tried again for ``retry_s``.
    """

    lanes: int = 4
    budget_bytes: int = 256_000_000
    check: bool = True
    on_damage: str = STOP
    skip_limit: int = 100
    silence_s: float = 120
    retry_s: float = 30
    cache: SliceCache | None = None

    def __post_init__(self) -> None:
        for flag, value in (("--slices-at-once", self.lanes), ("--read-timeout", self.silence_s)):
            if not 0 < value < math.inf:
                raise UsageError(f"{flag} {value:g} is out of range; give more than 0")
        if self.skip_limit < 0:
            raise UsageError(f"--skip-limit {self.skip_limit} is out of range; give 0 or more")

    def lanes_of(self, slices: int, world_size: int) -> int:
        """How many slices each of ``world_size`` ranks reads at once.

        If slices are a multiple of the ranks, each lane gets whole slices, if half as many lanes are enough for it.
        """
        own = max(1, slices // world_size)
        most = min(self.lanes, own)
        if slices % world_size == 0:
            return next((lanes for lanes in range(most, most // 2, -1) if own % lanes == 0), most)
        return most

    def window_blocks(self, slices: Sequence[Slice]) -> int:
        """How many blocks a window of the order has: as many as fit the budget for each lane, but no more than 16.

        It does not depend on the number of ranks, and so neither does the order of an epoch.

        Raises UsageError if not even one block for each lane fits.
        """
        block_bytes = _block_bytes(slices)
        blocks = int(self.budget_bytes * DRAINED / (self.lanes * block_bytes))
        if not blocks:
            raise UsageError(
                f"--reader-memory {self.budget_bytes:,} is too little for --slices-at-once {self.lanes} and blocks of"
                f" {block_bytes:,.0f} bytes; give {self.least_bytes(slices):,} or more"
            )
        return min(WINDOW_BLOCKS, blocks)

    def least_bytes(self, slices: Sequence[Slice]) -> int:
        """The least budget that has one block for each lane."""
        return int(self.lanes * _block_bytes(slices) / DRAINED) + 1

    @staticmethod
    def window_bytes(slices: Sequence[Slice], window_blocks: int) -> int:
        """Memory of a window of so many blocks."""
        return room_bytes(round(window_blocks * _block_bytes(slices)))

    def window_budget(self, slices: Sequence[Slice], lanes: int, batch: int) -> int:
        """Bytes for windows: what the budget leaves for them.

        The rest is for batches, for the offsets of the open slices, and for what is copied into the cache.
        """
        records = sum(each.records for each in slices) or 1
        batches = BATCHES * batch * sum(each.size_bytes for each in slices) // records
        offsets = lanes * (LANE_BYTES + OFFSET_BYTES * max((each.records for each in slices), default=0))
        copied = COPY_BYTES if self.cache is not None else 0
        return self.budget_bytes - batches - offsets - copied


def _block_bytes(slices: Sequence[Slice]) -> float:
    """Bytes of a block, in the slice with the largest blocks on average."""
    return max((each.size_bytes / each.blocks for each in slices if each.blocks), default=1)

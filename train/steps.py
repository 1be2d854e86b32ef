"""The steps of an epoch: as many for each rank, by construction. Pure arithmetic."""

from dataclasses import dataclass

from train.intervals import run_of


@dataclass(frozen=True)
class Steps:
    """The steps that take ``total`` examples in batches of ``batch`` on each of ``world_size`` ranks.

    All ranks take the same number of steps. The last ones of a rank that has run out are filled up with marked repeats
    (``drop_last`` False), or what does not fill a batch on every rank is left out (``drop_last`` True).
    """

    total: int
    world_size: int
    batch: int
    drop_last: bool = False

    @property
    def number(self) -> int:
        """Steps of every rank."""
        if self.drop_last:
            return self.total // self.world_size // self.batch
        largest_share = -(-self.total // self.world_size)
        return -(-largest_share // self.batch)

    @property
    def examples(self) -> int:
        """Examples of all steps of all ranks, repeats apart."""
        return self.number * self.batch * self.world_size if self.drop_last else self.total

    def own(self, rank: int) -> int:
        """How many examples are the share of ``rank``."""
        start, stop = run_of(self.total, rank, self.world_size)
        return stop - start

    def real(self, rank: int, step: int) -> int:
        """How many examples of the batch of ``rank`` at ``step`` (from 0) are no repeats."""
        return max(0, min(self.batch, self.own(rank) - step * self.batch))

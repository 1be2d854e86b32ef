"""The learning rate, by how far a run has come. Pure."""

import math
from dataclasses import dataclass

from etl.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """``base`` is the rate for one rank. It is scaled by the world size, reached over ``warmup_epochs``, then decays
    until ``epochs`` are over.

    Linear scaling and gradual warm-up from the unscaled rate: Goyal et al., "Accurate, Large Minibatch SGD", 2017
    (arXiv:1706.02677); cosine decay to zero: Loshchilov and Hutter, "SGDR", 2017 (arXiv:1608.03983).
    """

    base: float
    warmup_epochs: float
    epochs: int
    decay: str = "cosine"

    def __post_init__(self) -> None:
        if not self.base > 0:
            raise UsageError(f"--lr {self.base:g} is no learning rate; give a number above 0")
        if self.decay not in ("cosine", "none"):
            raise UsageError(f"--decay {self.decay!r}: give cosine or none")

    def rate(self, done: float, world_size: int) -> float:
        """The rate of a step of ``world_size`` ranks before which ``done`` epochs (with a fraction) are over."""
        peak = self.base * world_size
        if done < self.warmup_epochs:
            return self.base + (peak - self.base) * done / self.warmup_epochs
        if self.decay == "none":
            return peak
        left = (done - self.warmup_epochs) / max(1e-9, self.epochs - self.warmup_epochs)
        return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, left)))

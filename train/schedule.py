"""The learning rate by step. Pure."""

import math
from dataclasses import dataclass

from etl.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """``base`` is the rate for one rank. It is scaled by ``world_size``, reached over ``warmup_steps``, then decays.

    Linear scaling and gradual warm-up from the unscaled rate: Goyal et al., "Accurate, Large Minibatch SGD", 2017
    (arXiv:1706.02677); cosine decay to zero: Loshchilov and Hutter, "SGDR", 2017 (arXiv:1608.03983).
    """

    base: float
    world_size: int
    warmup_steps: int
    total_steps: int
    decay: str = "cosine"

    def __post_init__(self) -> None:
        if not self.base > 0:
            raise UsageError(f"--lr {self.base:g} is no learning rate; give a number above 0")
        if self.decay not in ("cosine", "none"):
            raise UsageError(f"--decay {self.decay!r}: give cosine or none")

    def rate(self, step: int) -> float:
        """The rate of ``step`` (from 0)."""
        peak = self.base * self.world_size
        if step < self.warmup_steps:
            return self.base + (peak - self.base) * (step + 1) / self.warmup_steps
        if self.decay == "none":
            return peak
        left = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, left)))

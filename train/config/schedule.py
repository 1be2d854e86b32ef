"""The learning rate, by how far a run has come. Pure."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from train.config.recipe import COSINE, STEP, Recipe

BASE_BATCH = 256
TENTH = 0.1


@dataclass(frozen=True)
class Schedule:
    """``base`` is the rate for a global batch of `BASE_BATCH`. It is scaled with the global batch, reached over
    ``warmup_epochs``, and then falls: by a half cosine to zero when ``until`` epochs are over, or to a tenth after each
    of the epochs ``decays``, or not at all.

    Linear scaling, gradual warm-up from ``base`` and tenths: Goyal et al., "Accurate, Large Minibatch SGD", 2017
    (arXiv:1706.02677). If the full rate is not larger than ``base``, the warm-up is from a tenth of it. Cosine:
    Loshchilov and Hutter, "SGDR", 2017 (arXiv:1608.03983).
    """

    base: float
    warmup_epochs: float
    until: float
    decay: str = COSINE
    decays: tuple[float, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """The schedule of a recipe whose values are `Recipe.resolved`."""
        until = math.inf if recipe.decay_until is None else recipe.decay_until
        return cls(recipe.base_rate, recipe.warmup_epochs or 0, until, recipe.decay, recipe.decays)

    def peak(self, global_batch: int) -> float:
        """The rate at the end of the warm-up."""
        return self.base * global_batch / BASE_BATCH

    def share(self, done: float, global_batch: int) -> float:
        """The rate after ``done`` epochs as a part of its peak."""
        return self.rate(done, global_batch) / self.peak(global_batch)

    def rate(self, done: float, global_batch: int) -> float:
        """The rate of a step on ``global_batch`` examples before which ``done`` epochs (with a fraction) are over."""
        peak = self.peak(global_batch)
        if done < self.warmup_epochs:
            start = self.base if peak > self.base else TENTH * peak
            return start + (peak - start) * done / self.warmup_epochs
        if self.decay == STEP:
            return float(peak * TENTH ** bisect_right(self.decays, done))
        if self.decay == COSINE:
            over = (done - self.warmup_epochs) / max(1e-9, self.until - self.warmup_epochs)
            return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, over)))
        return peak

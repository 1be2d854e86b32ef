"""Is a candidate better than the champion? Paired comparison of their answers to the same examples. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from etl.errors import EnvironmentFailure, UsageError

EXACT_BELOW = 25  # discordant pairs: the normal approximation is used from here on


@dataclass(frozen=True)
class Answers:
    """By key, ascending: keys (bytes), numbers of the true and of the predicted class, each of shape (examples,)."""

    keys: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]

    @property
    def hits(self) -> npt.NDArray[np.bool_]:
        """True for each example that is predicted right: bool of shape (examples,)."""
        return self.labels == self.predicted

    @property
    def accuracy(self) -> float:
        """The share of examples that are predicted right, from 0 to 1; 0 without examples."""
        return int(self.hits.sum()) / max(1, len(self.hits))


@dataclass(frozen=True)
class Rules:
    """What a candidate must fulfil to be promoted; each from 0 to 1."""

    max_p: float = 0.05
    min_accuracy: float = 0.0
    max_class_drop: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise UsageError(f"--{name.replace('_', '-')} {value:g} is out of range; give a number from 0 to 1")


@dataclass(frozen=True)
class Comparison:
    """Of a candidate with the champion: pairs that one of them alone has right, and the largest loss of a class."""

    only_candidate: int
    only_champion: int
    p_value: float
    class_drop: float
    dropped_class: str


def mcnemar(first: int, second: int) -> float:
    """The two-sided p-value of McNemar's test on the two numbers of discordant pairs.

    Below `EXACT_BELOW` pairs it is that of the binomial test, else of the chi-squared statistic with one degree of
    freedom and Edwards' continuity correction (Edwards 1948).
    """
    pairs, difference = first + second, abs(first - second)
    if pairs < EXACT_BELOW:
        tail = sum(math.comb(pairs, number) for number in range(min(first, second) + 1))
        return min(1.0, 2 * tail / 2**pairs)
    return math.erfc(math.sqrt(max(0, difference - 1) ** 2 / pairs / 2))


def compare(candidate: Answers, champion: Answers, classes: Sequence[str]) -> Comparison:
    """Raises EnvironmentFailure if they did not answer the same examples."""
    same = np.array_equal(candidate.keys, champion.keys) and np.array_equal(candidate.labels, champion.labels)
    if not same:
        raise EnvironmentFailure("candidate and champion were evaluated on different examples; run again")
    ours, theirs = candidate.hits, champion.hits
    only_candidate, only_champion = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    totals, own, other = (
        np.bincount(candidate.labels, weights=each, minlength=len(classes)) for each in (None, ours, theirs)
    )
    drops = (other - own) / np.maximum(1, totals)
    worst = int(drops.argmax())
    p_value = mcnemar(only_candidate, only_champion)
    drop = max(0.0, float(drops[worst]))
    return Comparison(only_candidate, only_champion, p_value, drop, classes[worst] if drop else "")


def decide(rules: Rules, accuracy: float, comparison: Comparison | None, candidates: int = 1) -> tuple[bool, str]:
    """Whether the best of so many ``candidates`` is promoted, and why; ``comparison`` is None without a champion.

    Its p-value must be at most --max-p divided by the number of candidates (Bonferroni).
    """
    if accuracy < rules.min_accuracy:
        return False, f"accuracy {accuracy:.4f} is below --min-accuracy {rules.min_accuracy:g}"
    if comparison is None:
        return True, "it is the first champion"
    ours, theirs, p_value = comparison.only_candidate, comparison.only_champion, comparison.p_value
    counts = f"{ours} examples against {theirs} that one of them alone has right"
    if ours <= theirs:
        return False, f"it is not more accurate: {counts}"
    if p_value * candidates > rules.max_p:
        share = f" / {candidates} candidates" if candidates > 1 else ""
        return False, f"p {p_value:.3g} is above --max-p {rules.max_p:g}{share}: {counts}"
    if comparison.class_drop > rules.max_class_drop:
        name, drop = comparison.dropped_class, comparison.class_drop
        return False, f"class {name!r} loses {drop:.4f}, more than --max-class-drop {rules.max_class_drop:g}"
    return True, f"it is more accurate, p {p_value:.3g}: {counts}"

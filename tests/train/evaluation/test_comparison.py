"""Which of two models is promoted, from seeded answers whose true order is known; the p-values are SciPy's."""

import numpy as np
import pytest
from scipy.stats import binomtest, chi2

from etl.errors import EnvironmentFailure, UsageError
from train.evaluation.comparison import EXACT_BELOW, Answers, Comparison, Rules, compare, decide, mcnemar

CLASSES = [*"abcde"]
EXAMPLES = 600
SEEDS = range(10)


def test_p_values_are_those_of_scipy() -> None:
    for pairs in range(60):
        for first in range(pairs + 1):
            second = pairs - first
            if pairs < EXACT_BELOW:
                expected = binomtest(first, pairs, 0.5).pvalue if pairs else 1.0
            else:
                expected = chi2.sf(max(0, abs(first - second) - 1) ** 2 / pairs, 1)
            assert mcnemar(first, second) == pytest.approx(expected, rel=1e-9), (first, second)


def answers(labels: np.ndarray, accuracy: float, generator: np.random.Generator) -> Answers:
    """Of a model that is right on an example with this probability, whichever it is."""
    wrong = (labels + generator.integers(1, len(CLASSES), len(labels))) % len(CLASSES)
    predicted = np.where(generator.random(len(labels)) < accuracy, labels, wrong)
    return Answers(np.array([b"%06d" % number for number in range(len(labels))], object), labels, predicted)


def is_promoted(candidate: Answers, champion: Answers) -> bool:
    return decide(Rules(max_class_drop=1), candidate.accuracy, compare(candidate, champion, CLASSES))[0]


def test_ten_pairs_whose_order_is_known() -> None:
    """The better one is promoted, the worse one never, also if chance has it ahead on these examples."""
    is_ahead = 0
    for seed in SEEDS:
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, len(CLASSES), EXAMPLES)
        worse, better = answers(labels, 0.85, generator), answers(labels, 0.95, generator)
        assert is_promoted(better, worse) and not is_promoted(worse, better), seed
        slightly_worse = answers(labels, 0.945, generator)
        assert not is_promoted(slightly_worse, better), seed
        is_ahead += slightly_worse.accuracy > better.accuracy
        assert not is_promoted(better, better)
    assert is_ahead > 0  # accuracy alone would have promoted a worse one


def comparison(first: int, second: int, drop: float = 0) -> Comparison:
    return Comparison(first, second, mcnemar(first, second), drop, "b")


@pytest.mark.parametrize(
    ("accuracy", "found", "candidates", "reason"),
    [
        (0.9, None, 1, "it is the first champion"),
        (0.9, comparison(12, 2), 1, "it is more accurate, p 0.0129: 12 examples against 2"),
        (0.79, None, 1, "accuracy 0.7900 is below --min-accuracy 0.8"),
        (0.79, comparison(12, 2), 1, "accuracy 0.7900 is below --min-accuracy 0.8"),
        (0.9, comparison(12, 12), 1, "it is not more accurate: 12 examples against 12"),
        (0.9, comparison(2, 12), 1, "it is not more accurate"),
        (0.9, comparison(0, 0), 1, "it is not more accurate"),
        (0.9, comparison(8, 2), 1, "p 0.109 is above --max-p 0.05: 8 examples"),
        (0.9, comparison(12, 2), 4, "p 0.0129 is above --max-p 0.05 / 4 candidates"),
        (0.9, comparison(12, 2, 0.11), 1, "class 'b' loses 0.1100, more than --max-class-drop 0.1"),
        (0.9, comparison(12, 2, 2 / 20), 1, "it is more accurate"),
    ],
)
def test_each_rule(accuracy: float, found: Comparison | None, candidates: int, reason: str) -> None:
    is_promoted, why = decide(Rules(min_accuracy=0.8), accuracy, found, candidates)
    assert why.startswith(reason)
    assert is_promoted == reason.startswith(("it is more", "it is the first"))


def test_the_class_that_loses_most_is_named() -> None:
    labels = np.array([0] * 10 + [1] * 4 + [2] * 6)
    keys = np.array([b"%d" % number for number in range(20)], object)
    champion = np.where(np.arange(20) < 6, 3, labels)
    candidate = np.where(np.arange(20) == 12, 3, labels)
    found = compare(Answers(keys, labels, candidate), Answers(keys, labels, champion), CLASSES)
    assert (found.only_candidate, found.only_champion) == (6, 1)
    assert (found.dropped_class, found.class_drop) == ("b", 0.25)
    with pytest.raises(EnvironmentFailure, match="different examples"):
        compare(Answers(keys[::-1], labels, candidate), Answers(keys, labels, champion), CLASSES)


def test_limits_are_fractions() -> None:
    with pytest.raises(UsageError, match=r"--max-p 5 is out of range"):
        Rules(max_p=5)

"""The table of which class is taken for which, over all ranks."""

import json

import numpy as np
import pytest

from etl.storage.json_files import json_bytes
from tests.lib.ranks.threads import ThreadRank, on_ranks
from train.runs import confusion
from train.runs.confusion import MOST_CLASSES, Confusion

CLASSES = [f"class {label}" for label in range(7)]


@pytest.mark.parametrize("cells_at_once", [1, 20, 1 << 20])
def test_counts_are_of_all_ranks(cells_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confusion, "CELLS_AT_ONCE", cells_at_once)
    generator = np.random.default_rng(1)
    labels, predicted, weights = (generator.integers(0, most, (3, 40)) for most in (7, 7, 2))

    def of_rank(strategy: ThreadRank) -> bytes:
        made, rank = Confusion("test", CLASSES), strategy.rank
        for batch in range(0, 40, 8):
            own = slice(batch, batch + 8)
            made.add(labels[rank, own], predicted[rank, own], weights[rank, own].astype(np.float32))
        made.sum_over_ranks(strategy.all_reduce)
        return json_bytes(made.to_json())

    expected = np.zeros((7, 7), int)
    for true, taken, weight in zip(labels.ravel(), predicted.ravel(), weights.ravel(), strict=True):
        expected[true, taken] += weight
    for result in on_ranks(3, of_rank):
        assert result.count(b"\n") == 7 + 7  # a row on each line
        assert json.loads(result)["counts"] == expected.tolist()


def test_there_is_none_of_very_many_classes() -> None:
    made = Confusion("test", ["a"] * (MOST_CLASSES + 1))
    made.add(np.array([1]), np.array([2]), np.array([1.0]))
    made.sum_over_ranks(lambda counts: counts)
    assert not made.counts.size

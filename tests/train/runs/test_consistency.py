"""Ranks whose weights must be equal."""

import hashlib
from types import SimpleNamespace
from typing import cast

import pytest

from etl.errors import EnvironmentFailure
from tests.lib.ranks.threads import ThreadRank, on_ranks
from train.parallel.trainer import Trainer
from train.runs.consistency import require_equal_weights


def trainer(*values: bytes) -> Trainer:
    """One whose variables have these bytes."""
    digests = [(f"v{number}", hashlib.sha256(value).hexdigest()) for number, value in enumerate(values)]
    return cast(Trainer, SimpleNamespace(digests=lambda: digests))


def test_weights_that_differ_are_reported_by_rank_and_name() -> None:
    def of_rank(rank: ThreadRank) -> None:
        require_equal_weights(trainer(b"1", b"2" if rank.rank == 2 else b"1", b"1"), rank)

    on_ranks(3, lambda rank: require_equal_weights(trainer(b"1", b"1"), rank))
    with pytest.raises(EnvironmentFailure, match=r"the weights of ranks \[2\] are not those of rank 0, v1 first"):
        on_ranks(3, of_rank)

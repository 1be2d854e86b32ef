"""Ranks that do not agree: on what they begin with, or on their weights."""

import hashlib
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etl.errors import EnvironmentFailure, RingsliceError, UsageError
from tests.lib.ranks.threads import ThreadRank, on_ranks
from train.parallel.devices import Device
from train.parallel.trainer import Trainer
from train.runs.consistency import disagreement, require_equal_weights
from train.runs.folder import Dataset

FACTS: dict[str, Any] = {
    "host": "one",
    "versions": {"keras": "3.1"},
    "settings": {"--epochs": 5},
    "slices": "ab",
    "has_nccl": True,
    "device": asdict(Device(cores=1)),
}


@pytest.mark.parametrize(
    ("other", "kind", "line"),
    [
        ({"slices": "cd"}, UsageError, " sees other slices (cd) at /slices, rank 0 those of ab;"),
        ({"slices": None}, UsageError, " sees no finished slices at "),
        ({"settings": {"--epochs": 6}}, UsageError, " was started with --epochs 6, rank 0 with 5;"),
        ({"versions": {"keras": "0.1"}}, EnvironmentFailure, " has keras 0.1, rank 0 has 3.1;"),
        ({"device": asdict(Device(lacks="there is no GPU"))}, EnvironmentFailure, ": there is no GPU"),
    ],
)
def test_what_differs_from_rank_0_is_named(other: dict[str, Any], kind: type[RingsliceError], line: str) -> None:
    dataset = cast(Dataset, SimpleNamespace(fingerprint="ab", folder="/slices"))
    assert disagreement([FACTS, FACTS], 1, dataset) is None
    error = disagreement([FACTS, FACTS | other], 1, dataset)
    assert type(error) is kind
    assert str(error).startswith(f"rank 1 on one{line}")


def trainer(*values: bytes, first: int | None = None) -> Trainer:
    """One whose variables have these bytes; of a part of the model that begins at variable ``first``, if given."""
    digests = [(f"v{number}", hashlib.sha256(value).hexdigest()) for number, value in enumerate(values, first or 0)]
    return cast(Trainer, SimpleNamespace(digests=lambda: digests, is_divided=first is not None))


def test_weights_that_differ_are_reported_by_rank_and_name() -> None:
    def of_rank(rank: ThreadRank) -> None:
        require_equal_weights(trainer(b"1", b"2" if rank.rank == 2 else b"1", b"1"), rank)

    on_ranks(3, lambda rank: require_equal_weights(trainer(b"1", b"1"), rank))
    with pytest.raises(EnvironmentFailure, match=r"the weights of ranks \[2\] are not those of rank 0, v1 first"):
        on_ranks(3, of_rank)


def test_parts_of_a_model_are_compared_with_those_of_the_same_name() -> None:
    def of_rank(rank: ThreadRank, last: bytes) -> None:
        require_equal_weights(trainer(b"1", b"2" if rank.rank == 0 else last, first=1 - rank.rank), rank)

    on_ranks(2, lambda rank: of_rank(rank, b"1"))  # v1 of both
    with pytest.raises(EnvironmentFailure, match=r"the weights of ranks \[1\] are not those of rank 0, v1 first"):
        on_ranks(2, lambda rank: of_rank(rank, b"3"))

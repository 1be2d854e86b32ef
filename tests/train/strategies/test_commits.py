"""Where ranks that form a ring go on: the newest commit that any of them brought along."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.lib.ranks.threads import ThreadRank, on_ranks
from train.checkpoints.safetensors_file import Arrays
from train.parallel.trainer import Trainer
from train.reader.state import ReaderState
from train.runs.metrics import Line
from train.runs.position import Position
from train.runs.run import Run
from train.strategies.elastic import Elastic, Membership, Memory

TOTAL = 102
Found = tuple[Position, list[float], list[Line]]


class ThreadTrainer:
    """Has one variable, and no model."""

    def __init__(self, collective: ThreadRank, value: float) -> None:
        self._collective = collective
        self.arrays: dict[str, Arrays] = {"model": {"w": np.full(2, value, np.float32)}}

    def state(self) -> dict[str, Arrays]:
        return self.arrays

    def load_state(self, state: dict[str, Arrays], source: str) -> None:
        assert source == "the last commit"
        self.arrays = state

    def broadcast_state(self, root: int = 0) -> None:
        self.arrays = self._collective.broadcast_object(self.arrays, root)


class ThreadElastic(Elastic):
    """A ring of threads."""

    collective: Any

    def __init__(self, collective: ThreadRank, memory: Memory) -> None:
        self.collective, self._memory = collective, memory
        self._membership = cast(Membership, SimpleNamespace(check=lambda collective: None))


def position(step: int, epoch: int = 1) -> Position:
    """After so many steps of 2 examples on each of 3 ranks."""
    reader = ReaderState("these", "train", 0, epoch, 16, ((0, TOTAL),), world_size=3, batch=2, taken=step)
    return Position(step, reader, rolled_back=1)


def memory(at: Position | None = None, value: float = 0.0, steps_since: int = 0) -> Memory:
    """Of a rank that committed ``at`` a position, with this weight, and took so many steps beyond."""
    made = Memory()
    if at is not None:
        trainer = cast(Trainer, ThreadTrainer(ThreadRank(cast(Any, SimpleNamespace(size=1)), 0), value))
        strategy = ThreadElastic(cast(Any, None), made)
        strategy.commit(cast(Run, None), at, trainer, [{"kind": "step", "step": at.step}])
        for _ in range(steps_since):
            strategy.after_step()
    return made


def restore(memories: Sequence[Memory]) -> list[Found | None]:
    """Where each rank goes on, its weights then, and its lines of metrics."""

    def of_rank(rank: ThreadRank) -> Found | None:
        trainer = ThreadTrainer(rank, value=-1.0 - rank.rank)
        found = ThreadElastic(rank, memories[rank.rank]).restore(cast(Trainer, trainer), lambda line: None)
        return None if found is None else (found[0], trainer.arrays["model"]["w"].tolist(), found[1])

    return on_ranks(len(memories), of_rank)


@pytest.mark.parametrize("source", [0, 1, 2])
def test_all_go_on_from_the_newest_commit_of_any(source: int) -> None:
    """The others are new, or missed the last one."""
    memories = [memory(), memory(), memory()]
    memories[source - 1] = memory(position(4), 0.25, 9)
    memories[source] = memory(position(10), 0.5, steps_since=3)
    for found in restore(memories):
        assert found is not None
        at, weights, lines = found
        assert (at.step, at.reader.taken, at.rolled_back) == (10, 10, 1 + 3)
        assert weights == [0.5, 0.5]
        assert lines == [{"kind": "step", "step": 10}]


def test_an_epoch_counts_more_than_nothing_and_less_than_a_step() -> None:
    """At the same step, a rank that has begun the next epoch is ahead."""
    found = restore([memory(position(10), 0.25), memory(position(10, epoch=2), 0.5)])
    assert [each and (each[0].epoch, each[1]) for each in found] == [(2, [0.5, 0.5])] * 2


def test_without_a_commit_the_run_begins_or_goes_on_from_a_checkpoint() -> None:
    assert restore([memory(), memory()]) == [None, None]

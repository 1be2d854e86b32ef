"""Where ranks that form a ring go on: the newest commit that any of them brought along."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import keras
import numpy as np
import pytest

from etl.errors import EnvironmentFailure
from etl.storage.place import Place, open_place
from tests.lib.ranks.threads import ThreadRank, on_ranks
from train.monitor.monitor import Monitor
from train.reader.state import ReaderState
from train.runs.position import Position
from train.trainer.commits import Keeper, Memory, require_equal_weights, steps_to_report
from train.trainer.session import Session

TOTAL = 102
Found = tuple[Position, list[float]]


def position(step: int, epoch: int = 1, world_size: int = 3) -> Position:
    """After so many steps of 2 examples on each rank."""
    reader = ReaderState("these", "train", 0, epoch, 16, ((0, TOTAL),), world_size, batch=2, taken=step)
    return Position(step, reader, rolled_back=1)


def memory(at: Position | None, value: float, steps_since: int) -> Memory:
    arrays = {"model": {"0000-w": np.full(2, value, np.float32)}}
    return Memory(at, arrays if at else {}, steps_since, [{"kind": "step", "step": at.step}] if at else [])


def session_of(strategy: ThreadRank, run: Place, value: float) -> Session:
    variable = keras.Variable(np.full(2, value, np.float32), name="w")
    told: dict[str, Any] = {
        "monitor": Monitor(),
        "strategy": strategy,
        "is_root": strategy.rank == 0,
        "run": run,
        "attempts": (run / "attempts").make_folder(),
        "choice": None,
        "settings": SimpleNamespace(keep=3, checkpoint_failures=3),
        "identity": {"slices": "these"},
        "examples": TOTAL,
        "groups": {"model": [variable]},
        "variables": [variable],
        "shared": lambda state: state.shared(strategy.size, 1, 2),
    }
    return cast(Session, SimpleNamespace(**told))


def recall(folder: Path, memories: Sequence[Memory]) -> list[Found]:
    """Where each rank goes on, and its weights then."""
    run = open_place(str(folder))

    def of_rank(strategy: ThreadRank) -> Found:
        own = memories[strategy.rank]
        session = session_of(strategy, run, value=-1.0 - strategy.rank)
        keeper = Keeper(session, own, None)
        found = keeper.recall()
        assert own.steps_since == 0
        keeper.abandon()
        return found, session.variables[0].numpy().tolist()

    return on_ranks(len(memories), of_rank)


@pytest.mark.parametrize(
    ("step_s", "left_s", "steps"),
    [
        (0.0, math.inf, 256),
        (0.001, math.inf, 256),
        (0.5, math.inf, 20),
        (11.0, math.inf, 1),
        (0.5, 3.0, 6),
        (0.5, -1, 1),
    ],
)
def test_a_report_is_due_after_ten_seconds_of_steps_or_when_the_time_is_over(
    step_s: float, left_s: float, steps: int
) -> None:
    assert steps_to_report(step_s, left_s) == steps


@pytest.mark.parametrize("source", [0, 1, 2])
def test_all_go_on_from_the_newest_commit_of_any(source: int, tmp_path: Path) -> None:
    """The others are new, or missed the last one."""
    memories = [memory(None, 0, 0), memory(None, 0, 0), memory(None, 0, 0)]
    memories[source - 1] = memory(position(4), 0.25, 9)
    memories[source] = memory(position(10), 0.5, steps_since=3)
    found = recall(tmp_path, memories)
    assert [(at.step, at.reader.taken, at.rolled_back) for at, _ in found] == [(10, 10, 1 + 3)] * 3
    assert [weights for _, weights in found] == [[0.5, 0.5]] * 3
    assert [each.lines for each in memories] == [[{"kind": "step", "step": 10}]] * 3


def test_what_is_left_is_shared_out_anew_among_other_ranks(tmp_path: Path) -> None:
    (one, _), (two, _) = recall(tmp_path, [memory(None, 0, 0), memory(position(10), 0.5, 0)])
    assert one == two
    assert (one.reader.world_size, one.reader.taken) == (2, 0)
    assert one.reader.examples_left == TOTAL - 3 * 20


def test_an_epoch_counts_more_than_nothing_and_less_than_a_step(tmp_path: Path) -> None:
    """At the same step, who has begun the next epoch is ahead."""
    found = recall(tmp_path, [memory(position(10), 0.25, 0), memory(position(10, epoch=2), 0.5, 0)])
    assert [(at.epoch, weights) for at, weights in found] == [(2, [0.5, 0.5])] * 2


def test_weights_that_differ_by_a_bit_are_reported(tmp_path: Path) -> None:
    values = [1.0, 1.0, float(np.nextafter(np.float32(1), np.float32(2)))]
    run = open_place(str(tmp_path))
    on_ranks(3, lambda strategy: require_equal_weights(session_of(strategy, run, 1.0)))
    with pytest.raises(EnvironmentFailure, match=r"the weights of ranks \[2\] are not those of rank 0, w first"):
        on_ranks(3, lambda strategy: require_equal_weights(session_of(strategy, run, values[strategy.rank])))

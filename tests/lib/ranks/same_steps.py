#!/usr/bin/env python3
"""One epoch on the digits, 52 steps; every rank leaves its weights in OUT/CASE-NAME-SIZE-RANK.npz.

horovodrun -np 2 tests/lib/ranks/same_steps.py ROOT OUT CASE-NAME …

ring          2 ranks, a batch of 14 each
one-of-2      1 rank fed the concatenation of 2 ranks' batches
stopped       25 steps and a checkpoint
resumed       the rest, from there
identity      the twin that must fail: nothing is reduced

The case says what is trained: see CASES.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etl.errors import end_process
from etl.storage.place import open_place
from train.config.recipe import Recipe
from train.config.settings import Settings
from train.config.stopping import Stopping
from train.parallel.startup import OPTIONAL, claim_cores, without
from train.reader.batches import RecordBatch
from train.reader.intervals import Interval, Steps
from train.reader.order import EpochOrder
from train.reader.reader import SplitReader
from train.reader.state import ReaderState
from train.runs.position import Position
from train.trainer.run_lease import holding

with without(OPTIONAL):
    import tensorflow as tf

    from train.loop import train_epoch
    from train.parallel.strategy import Horovod
    from train.trainer.commits import Keeper, Memory
    from train.trainer.session import prepare
    from train.trainer.steps import compile_steps

BATCH = {1: 28, 2: 14, 4: 7}
RATE = 0.36
STOP_AFTER = 25


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "synchronised": {"model": "tests.lib.ranks.tiny:normed", "batch_norm": "synchronised", "lr": 0.02},
    "accumulated": {"accumulate": 7, "clip_norm": 1.0, "weight_decay": 0.01, "label_smoothing": 0.1},
    "lars": {"model": "tests.lib.ranks.tiny:dense", "optimizer": "lars", "lars_coefficient": 0.05},
    "compressed": {"compression": "fp16"},
    "float16": {"model": "tests.lib.ranks.tiny:dense", "precision": "float16"},
    "bfloat16": {"model": "tests.lib.ranks.tiny:dense", "precision": "bfloat16"},
}


class Identity(Horovod):
    """Horovod with what synchronises ranks replaced by the identity: the all-reduce, and that of batch norm."""

    def average(self, tensors: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        return list(tensors)

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor


class LocalStatistics(Horovod):
    """Horovod with the reduction of batch norm's statistics, and that alone, replaced by the identity."""

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        return tensor


class Stopped(Exception):
    """The run has come to where it is to be stopped."""


class StoppingKeeper(Keeper):
    """Stops the run after a checkpoint."""

    def after_step(self, position: Position, last: bool) -> Position:
        if position.step == STOP_AFTER:
            self.checkpoint(self.commit(position))
            raise Stopped
        return super().after_step(position, last)


@dataclass
class Concatenation:
    """What ``ranks`` ranks read at each step, as one batch."""

    reader: SplitReader
    ranks: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)

    def steps(self, state: ReaderState, batch: int, drop_last: bool) -> Steps:
        return self.reader.steps(state.shared(self.ranks, self.reader.lanes(self.ranks)), batch // self.ranks)

    def batches(
        self, order: EpochOrder, steps: Steps, rank: int, left: Sequence[Interval], first_step: int
    ) -> Iterator[RecordBatch]:
        assert (rank, first_step) == (0, 0)
        each = [self.reader.batches(order, steps, each) for each in range(self.ranks)]
        for together in zip(*each, strict=True):
            yield RecordBatch(
                np.concatenate([batch.addresses for batch in together]),
                np.concatenate([batch.sizes for batch in together]),
                np.concatenate([batch.numbers for batch in together]),
                np.concatenate([batch.weights for batch in together]),
                tuple(held for batch in together for held in batch.holding),
            )


STRATEGIES = {"identity": Identity, "local": LocalStatistics}


def recipe_of(case: str, batch: int, accumulates: bool) -> Recipe:
    settings = {"model": "mlp", "accumulate": 1, "lr": RATE, **CASES[case]}
    if not accumulates:
        settings["accumulate"] = 1
    settings["batch"] = batch // settings["accumulate"]
    return Recipe(**settings, warmup_epochs=0, decay="none")


def main(root: str, out: str, task: str) -> None:
    case, _, name = task.partition("-")
    strategy = STRATEGIES.get(name, Horovod)()
    ranks = int(name.rpartition("-")[2]) if name.startswith("one-of-") else 1
    settings = Settings(
        data=root,
        recipe=recipe_of(case, BATCH[strategy.size], accumulates=ranks == 1),
        stopping=Stopping(epochs=1),
        run=f"{case}-stopped" if name == "resumed" else task,
        resume="auto" if name == "resumed" else None,
    )
    session = prepare(settings, strategy)
    if ranks > 1:
        session.readers["train"] = Concatenation(session.readers["train"], ranks)  # type: ignore[assignment]
    if strategy.rank:
        for variable in session.model.trainable_variables:
            variable.assign(variable * 2)  # the first weights must come from rank 0
    with holding(session.run, strategy) as session.attempts:
        keeper = (StoppingKeeper if name == "stopped" else Keeper)(session, Memory(), None)
        position = keeper.recall()
        assert position.step == (STOP_AFTER if name == "resumed" else 0)
        try:
            position, _, _ = train_epoch(session, position, keeper, compile_steps(session)[0])
            assert position.step == 52, position.step
        except Stopped:
            pass
        keeper.finish()
    place = open_place(out).make_folder()
    np.savez(f"{place.path}/{task}-{strategy.size}-{strategy.rank}.npz", *[v.numpy() for v in session.model.variables])


if __name__ == "__main__":
    claim_cores(int(os.environ.get("HOROVOD_LOCAL_RANK", "0")), int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")))
    root, out, *tasks = sys.argv[1:]
    for task in tasks:
        main(root, out, task)
    end_process(0)

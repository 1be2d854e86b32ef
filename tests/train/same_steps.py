#!/usr/bin/env python3
"""One epoch of the mlp on the digits, 52 steps; every rank leaves its weights in OUT/NAME-SIZE-RANK.npz.

horovodrun -np 2 tests/train/same_steps.py ROOT OUT NAME …

ring          2 ranks, a batch of 14 each
one-of-2      1 rank fed the concatenation of 2 ranks' batches
stopped       25 steps and a checkpoint
resumed       the rest, from there
identity      the twin that must fail: nothing is reduced
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from etl.errors import end_process
from etl.storage import open_place
from train.drawing import RecordBatch
from train.holding import holding
from train.intervals import Interval
from train.keeping import Keeper, Memory
from train.loop import compile_steps, train_epoch
from train.main import claim_cores
from train.order import EpochOrder
from train.position import Position
from train.reader import SplitReader
from train.session import prepare
from train.settings import Settings
from train.state import ReaderState
from train.steps import Steps
from train.strategies import Horovod

BATCH = {1: 28, 2: 14, 4: 7}
RATE = 0.02
STOP_AFTER = 25


class Identity(Horovod):
    """Horovod with its all-reduce replaced by the identity."""

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(tensors)


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


def main(root: str, out: str, name: str) -> None:
    strategy = Identity() if name == "identity" else Horovod()
    ranks = int(name.rpartition("-")[2]) if name.startswith("one-of-") else 1
    settings = Settings(
        data=root,
        name=None,
        group=None,
        model="mlp",
        epochs=1,
        batch=BATCH[strategy.size],
        lr=RATE * ranks,
        momentum=0.9,
        warmup_epochs=0,
        decay="none",
        drop_last=False,
        seed=0,
        run="stopped" if name == "resumed" else name,
        resume="auto" if name == "resumed" else None,
        audit=False,
        json=False,
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
            position, _ = train_epoch(session, position, keeper, compile_steps(session)[0])
            assert position.step == 52, position.step
        except Stopped:
            pass
        keeper.finish()
    place = open_place(out).make_folder()
    np.savez(f"{place.path}/{name}-{strategy.size}-{strategy.rank}.npz", *[v.numpy() for v in session.model.variables])


if __name__ == "__main__":
    claim_cores(int(os.environ.get("HOROVOD_LOCAL_RANK", "0")), int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")))
    root, out, *names = sys.argv[1:]
    for name in names:
        main(root, out, name)
    end_process(0)

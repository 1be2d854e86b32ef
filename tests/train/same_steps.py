#!/usr/bin/env python3
"""One epoch of the mlp on the digits; every rank leaves its weights in OUT/NAME-RANK.npz.

horovodrun -np 2 tests/train/same_steps.py ROOT OUT ring          # 2 ranks, batch 16 each
python tests/train/same_steps.py ROOT OUT one-of-2                # 1 rank fed the concatenation of 2 ranks' batches
horovodrun -np 2 tests/train/same_steps.py ROOT OUT identity      # the twin that must fail: nothing is reduced
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from etl.errors import end_process
from etl.storage import open_place
from train.drawing import RecordBatch
from train.loop import compile_steps, prepare, train_epoch
from train.main import claim_cores
from train.order import EpochOrder
from train.reader import SplitReader
from train.reading import Reading
from train.settings import Settings
from train.steps import Steps
from train.strategies import Horovod

BATCH = 16
RATE = 0.02


class Identity(Horovod):
    """Horovod with its all-reduce replaced by the identity."""

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return list(tensors)


@dataclass
class Concatenation:
    """What ``ranks`` ranks read at each step, as one batch."""

    reader: SplitReader
    ranks: int

    @property
    def reading(self) -> Reading:
        return self.reader.reading

    def order(self, seed: int, epoch: int) -> EpochOrder:
        return self.reader.order(seed, epoch)

    @property
    def total(self) -> int:
        return self.reader.total

    def batches(self, order: EpochOrder, steps: Steps, rank: int) -> Iterator[RecordBatch]:
        assert rank == 0
        own = Steps(steps.total, self.ranks, steps.batch // self.ranks)
        assert own.number == steps.number
        for together in zip(*(self.reader.batches(order, own, each) for each in range(self.ranks)), strict=True):
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
        batch=BATCH * ranks,
        lr=RATE * ranks,
        momentum=0.9,
        warmup_epochs=0,
        decay="none",
        drop_last=False,
        seed=strategy.rank,  # the first weights must come from rank 0
        run=None,
        resume=False,
        audit=False,
        json=False,
    )
    session = prepare(settings, strategy)
    settings = Settings(**{**vars(settings), "seed": 0})
    session.settings = settings
    if ranks > 1:
        session.readers["train"] = Concatenation(session.readers["train"], ranks)  # type: ignore[assignment]
    strategy.broadcast(session.variables)
    train_epoch(session, 1, compile_steps(session)[0])
    assert session.steps.number >= 20
    place = open_place(out).make_folder()
    np.savez(f"{place.path}/{name}-{strategy.size}-{strategy.rank}.npz", *[v.numpy() for v in session.model.variables])
    strategy.leave()


if __name__ == "__main__":
    claim_cores(int(os.environ.get("HOROVOD_LOCAL_RANK", "0")), int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")))
    main(*sys.argv[1:])
    end_process(0)

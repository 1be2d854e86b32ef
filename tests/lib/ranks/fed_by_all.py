"""One process that is fed, at each step, the batches of several ranks: what these ranks must equal."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np

from train.reader.batches import RecordBatch
from train.reader.order import epoch_seed
from train.reader.state import ReaderState
from train.runs.data import Data
from train.runs.position import Position


def fed_by_all(ranks: int, keeps_filling: bool = True) -> AbstractContextManager[Any]:
    """Within this context the process reads what so many ranks do.

    The examples that only fill up a batch are others than those of the ranks, unless it ``keeps_filling``: the result
    of a step must not depend on them. Batch norm's statistics do.
    """

    def train_records(data: Data, position: Position) -> tuple[Iterator[RecordBatch], int]:
        reader, state = data.train, position.reader
        order = reader.order(state.seed, state.epoch, state.window_blocks)
        of_ranks = [reader.batches(order, state.steps, each, state.left, state.taken) for each in range(ranks)]
        batches = (joined(each, keeps_filling) for each in zip(*of_ranks, strict=True))
        return batches, epoch_seed(data.recipe.seed, position.epoch)

    def divided(data: Data, state: ReaderState) -> ReaderState:
        """Among the ranks: the learning rate depends on the examples that are left to them."""
        batch = data.recipe.examples_per_step // ranks
        return state.shared(ranks, data.train.lanes(ranks), batch, data.recipe.drop_last)

    return mock.patch.multiple(Data, train_records=train_records, divided=divided)


def joined(batches: tuple[RecordBatch, ...], keeps_filling: bool) -> RecordBatch:
    addresses, sizes, numbers, weights = (
        np.concatenate([getattr(each, name) for each in batches])
        for name in ("addresses", "sizes", "numbers", "weights")
    )
    if not keeps_filling:
        for column in (addresses, sizes, numbers):
            column[weights == 0] = column[0]
    return RecordBatch(addresses, sizes, numbers, weights, buffers=tuple(batches))

#!/usr/bin/env python3
"""train/main.py in one process that is fed, at each step, the batches of $RANKS ranks: what ddp must equal."""

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from train.config.settings import Settings, command
from train.loop import train
from train.monitor.monitor import Monitor
from train.monitor.rank_process import run_rank
from train.reader.batches import RecordBatch
from train.reader.state import ReaderState
from train.runs.data import Data
from train.runs.position import Position
from train.strategies.ddp import run_ddp

RANKS = int(os.environ.get("RANKS", "1"))


def records_of_all(data: Data, position: Position) -> tuple[Iterator[RecordBatch], int]:
    """What `Data.train_records` gives the ranks, joined."""
    reader, state = data.train, position.reader
    order = reader.order(state.seed, state.epoch, state.window_blocks)
    of_ranks = [reader.batches(order, state.steps, each, state.left, state.taken) for each in range(RANKS)]
    return (joined(batches) for batches in zip(*of_ranks, strict=True)), 0


def divided_among_all(data: Data, state: ReaderState) -> ReaderState:
    """As `Data.divided`, of the ranks: the learning rate depends on the examples that are left to them."""
    batch = data.recipe.examples_per_step // RANKS
    return state.shared(RANKS, data.train.lanes(RANKS), batch, data.recipe.drop_last)


def joined(batches: tuple[RecordBatch, ...]) -> RecordBatch:
    def column(name: str) -> Any:
        return np.concatenate([getattr(each, name) for each in batches])

    return RecordBatch(
        column("addresses"), column("sizes"), column("numbers"), column("weights"), holding=tuple(batches)
    )


fed_by_all = mock.patch.multiple(Data, train_records=records_of_all, divided=divided_among_all)


def start(settings: Settings, monitor: Monitor) -> None:
    run_ddp(lambda strategy: train(settings, strategy, monitor), monitor, settings.device, 0)


if __name__ == "__main__":
    fed_by_all.start()
    run_rank(command(start), "train/main.py", "")

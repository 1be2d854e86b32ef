"""Trains on the first examples of each epoch; run by each rank that `benchmarks/remainders.py` starts.

    horovodrun -np 2 benchmarks/lib/ways/remainders.py ROOT EPOCHS TOTAL:SEED:DROP …

DROP is 0 or 1. Rank 0 prints a line of JSON for each: job, accuracy on the test split.
"""

import json
import sys
from dataclasses import replace
from typing import Any

from train.parallel.startup import prepare_import

with prepare_import():
    from train.config.recipe import Recipe
    from train.config.recipe_options import read_recipe
    from train.config.settings import Settings
    from train.config.stopping import Stopping
    from train.loop import Training
    from train.monitor.monitor import Monitor
    from train.reader.order import EpochOrder
    from train.reader.reader import SplitReader
    from train.reader.state import ReaderState
    from train.runs.data import open_data
    from train.runs.hooks import NO_HOOKS
    from train.runs.run import lock, open_run
    from train.strategies.horovod_ring import Horovod


class Part:
    """A split's reader of which each epoch has ``total`` examples, others in each."""

    def __init__(self, reader: SplitReader, split: str, total: int) -> None:
        self._reader, self._split, self.total = reader, split, total

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def begin(self, slices: str, order: EpochOrder) -> ReaderState:
        return ReaderState.of(slices, self._split, order, left=[(0, self.total)])


def accuracy(root: str, epochs: int, job: str, monitor: Monitor, strategy: Horovod) -> float:
    """On the test split, after so many epochs of the recipe of the digits."""
    total, seed, drop = map(int, job.split(":"))
    recipe = read_recipe("digits") | {"seed": seed, "drop_last": bool(drop)}
    recipe.pop("epochs")
    name = f"remainder-{total}-{seed}-{drop}"
    settings = Settings(data=root, recipe=Recipe(**recipe), stopping=Stopping(epochs=epochs), run=name)
    run = open_run(settings, strategy, monitor.log)
    data = open_data(run, strategy, monitor)
    readers = {**data.readers, "train": Part(data.train, "train", total)}
    data = replace(data, readers=readers)  # type: ignore[arg-type]
    trainer = strategy.make_trainer(run.settings, run.manifest)
    with lock(run, strategy.collective, monitor) as run:
        training = Training(run, data, trainer, strategy, monitor, hooks=NO_HOOKS)
        with training.checkpoints:
            position = training.restore()
            for epoch in range(1, epochs + 1):
                position = training.train_epoch(position)
                position = position.next_epoch(data.begin_epoch(epoch + 1), {})
            return float(training.evaluator.evaluate("test")["test_accuracy"])


def main(root: str, epochs: str, *jobs: str) -> None:
    monitor = Monitor()
    strategy = Horovod(monitor)
    for job in jobs:
        found = accuracy(root, int(epochs), job, monitor, strategy)
        if strategy.collective.is_root:
            print(json.dumps({"job": job, "accuracy": found}), flush=True)
    strategy.collective.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

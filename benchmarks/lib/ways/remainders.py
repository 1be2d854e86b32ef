"""Trains on the first examples of each epoch; run by each rank that `benchmarks/remainders.py` starts.

    horovodrun -np 2 benchmarks/lib/ways/remainders.py ROOT EPOCHS TOTAL:SEED:DROP …

DROP is 0 or 1. Rank 0 prints a line of JSON for each: job, accuracy on the test split.
"""

import json
import sys
from typing import Any

from train.parallel.startup import loading

with loading():
    from train.config.recipe import Recipe
    from train.config.recipe_options import read_recipe
    from train.config.settings import Settings
    from train.config.stopping import Stopping
    from train.loop import train_epoch
    from train.monitor.monitor import Monitor
    from train.parallel.strategy import Horovod, Strategy
    from train.reader.order import EpochOrder
    from train.reader.reader import SplitReader
    from train.reader.state import ReaderState
    from train.trainer.commits import Memory, keeping
    from train.trainer.run_lease import holding
    from train.trainer.session import prepare
    from train.trainer.steps import compile_steps, evaluate


class Part:
    """A split's reader of which each epoch has ``total`` examples, others in each."""

    def __init__(self, reader: SplitReader, split: str, total: int) -> None:
        self._reader, self._split, self.total = reader, split, total

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def begin(self, slices: str, order: EpochOrder) -> ReaderState:
        return ReaderState.of(slices, self._split, order, left=[(0, self.total)])


def accuracy(root: str, epochs: int, job: str, monitor: Monitor, strategy: Strategy) -> float:
    """On the test split, after so many epochs of the recipe of the digits."""
    total, seed, drop = map(int, job.split(":"))
    recipe = read_recipe("digits") | {"seed": seed, "drop_last": bool(drop)}
    recipe.pop("epochs")
    run = f"remainder-{total}-{seed}-{drop}"
    settings = Settings(data=root, recipe=Recipe(**recipe), stopping=Stopping(epochs=epochs), run=run)
    session = prepare(settings, monitor, strategy)
    session.readers["train"] = Part(session.readers["train"], "train", total)  # type: ignore[assignment]
    train_step, evaluate_step = compile_steps(session)
    with holding(session.run, strategy, monitor) as session.attempts, keeping(session, Memory()) as keeper:
        position = keeper.recall()
        for epoch in range(1, epochs + 1):
            position = train_epoch(session, position, keeper, train_step)
            position = position.next_epoch(session.epoch_begin(epoch + 1), {})
        return float(evaluate(session, "test", evaluate_step)["test_accuracy"])


def main(root: str, epochs: str, *jobs: str) -> None:
    monitor = Monitor()
    strategy = Horovod(monitor)
    for job in jobs:
        found = accuracy(root, int(epochs), job, monitor, strategy)
        if strategy.rank == 0:
            print(json.dumps({"job": job, "accuracy": found}), flush=True)
    strategy.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])

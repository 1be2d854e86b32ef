"""The evaluation of a model's weights on the splits of a run's data, on all ranks."""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from etl.errors import EnvironmentFailure
from train.evaluation.comparison import Answers
from train.monitor.heartbeat import READING
from train.monitor.monitor import Monitor
from train.parallel.collective import Collective
from train.parallel.trainer import Trainer
from train.reader.config import STOP
from train.reader.intervals import Steps
from train.runs.confusion import Confusion
from train.runs.data import Data
from train.runs.hooks import NO_HOOKS, Hooks
from train.runs.metrics import skipped
from train.runs.position import Metrics

EVALUATION_EPOCH = 0  # its order is that of every evaluation


class Collector:
    """The answers of all ranks, as each rank has them, batch by batch."""

    def __init__(self) -> None:
        self._columns: tuple[list[npt.NDArray[Any]], ...] = ([], [], [])

    def add(self, *columns: npt.NDArray[Any]) -> None:
        """Keys, numbers of the true and of the predicted class, each of shape (examples,)."""
        for own, column in zip(self._columns, columns, strict=True):
            own.append(column)

    def gather(self, collective: Collective) -> Answers:
        """Those of all ranks, on every rank."""
        ranks = collective.gather_object(self._columns)
        keys, labels, predicted = (np.concatenate([*chain(*column)]) for column in zip(*ranks, strict=True))
        order = np.argsort(keys)
        return Answers(keys[order], labels[order], predicted[order])


@dataclass(frozen=True)
class Evaluator:
    """Evaluates splits of ``data`` by the weights that ``trainer`` has, on all ranks."""

    data: Data
    trainer: Trainer
    collective: Collective
    monitor: Monitor
    hooks: Hooks = NO_HOOKS

    def evaluate(self, split: str, confusion: Confusion | None = None, answers: Collector | None = None) -> Metrics:
        """Loss and accuracy of every example of a split, each counted once, over all ranks; empty without that split.

        ``confusion`` gets the counts of predicted and actual classes, over all ranks too; ``answers`` the answer of
        this rank to each of its examples.

        Raises EnvironmentFailure if the ranks together saw another number of examples than the manifest has, and none
        may be skipped.
        """
        return self.hooks.on_evaluation(split, lambda: self._evaluate(split, confusion, answers))

    def _evaluate(self, split: str, confusion: Confusion | None, answers: Collector | None) -> Metrics:
        data, trainer, collective, monitor = self.data, self.trainer, self.collective, self.monitor
        if split not in data.readers:
            return {}
        reader = data.readers[split]
        order = reader.order(data.recipe.seed, EVALUATION_EPOCH)
        steps = Steps(reader.total, data.size, data.recipe.rank_batch * data.local_replicas)
        totals = [0.0, 0.0, 0.0]
        monitor.phase(f"{READING} {split}")
        for batch in trainer.evaluation_batches(reader.batches(order, steps, data.rank)):
            monitor.local_phase(f"evaluating {split}")
            sums, predicted = trainer.evaluate_step(batch)
            if data.is_counted:
                totals = [total + value for total, value in zip(totals, sums, strict=True)]
            if data.is_counted and confusion is not None:
                confusion.add(batch.labels.numpy(), predicted, batch.weights.numpy())
            if data.is_counted and answers is not None:
                is_real = batch.weights.numpy() > 0
                keys = np.array(batch.real_keys, object)
                answers.add(keys, batch.labels.numpy()[is_real], predicted[is_real])
            monitor.local_phase(f"{READING} {split}")
        loss, hits, examples = collective.all_reduce(np.array(totals)).tolist()
        if confusion is not None:
            confusion.sum_over_ranks(collective.all_reduce)
        if examples != reader.total and reader.reading.on_damage == STOP:
            raise EnvironmentFailure(f"{examples:.0f} examples of {split} were evaluated, it has {reader.total}")
        found = max(1.0, examples)
        metrics = {f"{split}_loss": loss / found, f"{split}_accuracy": hits / found}
        return metrics | skipped(split, reader.total - examples)

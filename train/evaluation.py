"""The evaluation of a run that has a checkpoint, apart from its training and on any number of ranks."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from etl.errors import DataError, EnvironmentFailure, UsageError
from etl.stages.stage import Run as RunRecord
from etl.stages.summary import Summary
from etl.storage.atomic import replace_bytes
from etl.storage.json_files import json_bytes
from etl.storage.place import Place, open_place
from train.checkpoints import store
from train.checkpoints.store import Checkpoint
from train.config.recipe import Recipe
from train.config.settings import AUTO, BEST, Settings
from train.monitor.heartbeat import READING
from train.monitor.monitor import Monitor
from train.parallel.collective import Collective
from train.parallel.trainer import Trainer
from train.reader.config import STOP, Reading
from train.reader.intervals import Steps
from train.runs.checkpointer import load_weights
from train.runs.confusion import Confusion
from train.runs.consistency import require_agreement
from train.runs.data import Data, open_data
from train.runs.folder import Dataset, choose_run, find_dataset
from train.runs.hooks import NO_HOOKS, Hooks
from train.runs.metrics import skipped
from train.runs.position import Metrics
from train.runs.run import Choice, Run
from train.strategies import Strategy

EVALUATION_EPOCH = 0  # its order is that of every evaluation
FORMAT = "ringslice.evaluation/1"


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate; the options of train/evaluate.py describe each field."""

    data: str
    name: str | None
    run: str | None
    split: str
    checkpoint: str
    min_accuracy: float | None
    json: bool
    reading: Reading


def evaluate_run(wanted: Evaluation, strategy: Strategy, monitor: Monitor) -> None:
    """Evaluate as ``wanted`` asks, on all ranks of ``strategy``."""
    record, collective = RunRecord(), strategy.collective
    dataset = collective.run_on_root(lambda: find_dataset(wanted.data, wanted.name))
    folder = collective.run_on_root(lambda: choose_run(open_place(dataset.root), wanted.run, AUTO).uri)
    marker = collective.run_on_root(lambda: find_checkpoint(open_place(folder), dataset, wanted.checkpoint).marker)
    collective.run_on_root(lambda: require_split(dataset, wanted.split))
    monitor.open_log(open_place(folder))
    given = {name: getattr(wanted, name) for name in ("data", "name", "run", "json", "reading")}
    settings = settings_of(marker, **given)
    require_agreement(settings, dataset, collective, strategy.device(settings))
    run = collective.run_root_first(lambda: Run.of(settings, Choice(dataset, folder)))
    data = open_data(run, strategy, monitor)
    monitor.local_phase("building the model")
    trainer = strategy.make_trainer(run.settings, run.manifest)
    collective.run_on_root(lambda: load_weights(run, trainer, marker, monitor))
    trainer.broadcast_state()
    metrics = Evaluator(data, trainer, collective, monitor).evaluate(wanted.split)
    if not math.isfinite(loss := metrics[f"{wanted.split}_loss"]):
        error = DataError(f"the loss on {wanted.split} is {loss} ({run.folder}, {store.name_of(marker['step'])})")
        error.is_reported = not collective.is_root
        raise error
    result = {
        "split": wanted.split,
        "examples": data.readers[wanted.split].total,
        "loss": loss,
        "accuracy": metrics[f"{wanted.split}_accuracy"],
        "skipped": metrics.get(f"{wanted.split}_skipped", 0),
        **weights_of(marker),
    }
    collective.run_on_root(lambda: finish(run, wanted, result, collective.size, record))
    collective.close()


@dataclass(frozen=True)
class Evaluator:
    """Evaluates splits of ``data`` by the weights that ``trainer`` has, on all ranks."""

    data: Data
    trainer: Trainer
    collective: Collective
    monitor: Monitor
    hooks: Hooks = NO_HOOKS

    def evaluate(self, split: str, confusion: Confusion | None = None) -> Metrics:
        """Loss and accuracy of every example of a split, each counted once, over all ranks; empty without that split.

        ``confusion`` gets the counts of predicted and actual classes, over all ranks too.

        Raises EnvironmentFailure if the ranks together saw another number of examples than the manifest has, and none
        may be skipped.
        """
        return self.hooks.on_evaluation(split, lambda: self._evaluate(split, confusion))

    def _evaluate(self, split: str, confusion: Confusion | None) -> Metrics:
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
            monitor.local_phase(f"{READING} {split}")
        loss, hits, examples = collective.all_reduce(np.array(totals)).tolist()
        if confusion is not None:
            confusion.sum_over_ranks(collective.all_reduce)
        if examples != reader.total and reader.reading.on_damage == STOP:
            raise EnvironmentFailure(f"{examples:.0f} examples of {split} were evaluated, it has {reader.total}")
        found = max(1.0, examples)
        metrics = {f"{split}_loss": loss / found, f"{split}_accuracy": hits / found}
        return metrics | skipped(split, reader.total - examples)


def find_checkpoint(run: Place, dataset: Dataset, which: str) -> Checkpoint:
    """The newest checkpoint of ``run``, or its best. Raises UsageError if it has none, or was not made from these
    slices.
    """
    checkpoint = store.best(run) if which == BEST else store.newest(run)
    if checkpoint is None and store.newest(run) is not None:
        raise UsageError(f"{run} has no checkpoint of the end of an epoch to be the best; give --checkpoint newest")
    if checkpoint is None:
        raise UsageError(f"{run} has no finished checkpoint; give --run NAME of a run that was trained")
    if checkpoint.marker["slices"] != dataset.fingerprint:
        raise UsageError(f"{run} was trained on other slices than {dataset.folder}; give --name of its slices")
    return checkpoint


def require_split(dataset: Dataset, split: str) -> None:
    """Raise UsageError if the slices have no examples of this split."""
    have = [name for name, its in dataset.manifest["splits"].items() if its["records"]]
    if split not in have:
        raise UsageError(f"--split {split!r}: {dataset.folder} has {', '.join(have)}")


def weights_of(marker: dict[str, Any]) -> dict[str, str]:
    """Which weights the checkpoint with this marker has, and of which slices, as results and exports record it."""
    return {
        "checkpoint": store.name_of(marker["step"]),
        "checkpoint_sha256": marker["files"]["model.safetensors"]["sha256"],
        "slices": marker["slices"],
    }


def settings_of(marker: dict[str, Any], **given: Any) -> Settings:
    """The settings that the checkpoint with this marker was trained with, and those that are ``given``."""
    recipe = dict(marker["settings"])
    group = recipe.pop("group")
    return Settings(recipe=Recipe(**recipe), group=group, resume=AUTO, **given)


def finish(run: Run, wanted: Evaluation, result: dict[str, Any], ranks: int, record: RunRecord) -> None:
    """Write the result and print it. Raises DataError if the accuracy is below what is wanted."""
    place = run.folder / f"evaluation-{wanted.split}.json"
    work = (run.folder / f"_evaluation-{wanted.split}").make_folder()  # not the trainer's, which may be at work
    replace_bytes(place, work, json_bytes({"format": FORMAT, **result}))
    work.delete()
    shown = {"loss": round(result["loss"], 4), "accuracy": round(result["accuracy"], 4)}
    facts = {"model": run.settings.recipe.model, "ranks": ranks, **result, **shown}
    facts["seconds"] = round(record.seconds, 1)
    Summary("evaluate", str(run.folder), False, facts).show(wanted.json)
    if wanted.min_accuracy is not None and result["accuracy"] < wanted.min_accuracy:
        raise DataError(
            f"accuracy {result['accuracy']:.4f} on {wanted.split} is below --min-accuracy {wanted.min_accuracy:g}"
            f" ({run.folder}, {result['checkpoint']})"
        )

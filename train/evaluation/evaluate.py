"""The evaluation of a run that has a checkpoint, apart from its training and on any number of ranks."""

import math
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from etl.errors import DataError, EnvironmentFailure
from etl.stages.run import RunRecord
from etl.stages.summary import Summary
from etl.storage.atomic import replace_bytes
from etl.storage.place import json_bytes, open_place
from train.evaluation.evaluator import Collector, Evaluator
from train.evaluation.trained import RunCheckpoint, find_trained, require_split
from train.monitor.monitor import Monitor
from train.reader.config import ReaderOptions
from train.runs.checkpointer import load_weights
from train.runs.consistency import require_agreement
from train.runs.data import open_data
from train.runs.folder import Dataset, find_dataset, has_begun
from train.runs.run import Run
from train.strategies import Strategy

FORMAT = "ringslice.evaluation/1"


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate; the options of train/evaluate.py describe each field."""

    data: str
    name: str | None
    run: str | None
    split: str
    checkpoint: str
    strategy: str
    min_accuracy: float | None
    json: bool
    reading: ReaderOptions


def evaluate_run(wanted: Evaluation, strategy: Strategy, monitor: Monitor) -> None:
    """Evaluate as ``wanted`` asks, on all ranks of ``strategy``."""
    record, collective = RunRecord(), strategy.collective
    dataset = collective.run_on_root(lambda: find_dataset(wanted.data, wanted.name))
    root = open_place(dataset.root)
    trained = collective.run_on_root(lambda: find_trained(root, wanted.run, wanted.checkpoint))
    collective.run_on_root(lambda: require_split(dataset, wanted.split))
    monitor.open_log(open_place(trained.folder))
    given = {name: getattr(wanted, name) for name in ("data", "name", "run", "strategy", "json", "reading")}
    run, result = evaluate(trained, dataset, wanted.split, strategy, monitor, given=given)
    collective.run_on_root(lambda: finish(run, wanted, result, collective.size, record))
    collective.close()


def evaluate(
    trained: RunCheckpoint,
    dataset: Dataset,
    split: str,
    strategy: Strategy,
    monitor: Monitor,
    *,
    given: dict[str, Any],
    answers: Collector | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Evaluate a run on a split of ``dataset``, by ``given`` settings; the run, and the result as it is recorded.

    Raises UsageError if the run does not fit these slices, DataError for a loss that is not finite.
    """
    collective = strategy.collective
    settings = trained.settings(**given)
    require_agreement(settings, dataset, collective, strategy.device(settings))
    run = collective.run_root_first(lambda: trained.run_on(dataset, settings))
    data = open_data(run, strategy, monitor)
    monitor.local_phase("building the model")
    trainer = strategy.make_trainer(run.settings, run.manifest)
    collective.run_on_root(lambda: load_weights(run, trainer, trained.marker, monitor))
    trainer.broadcast_state()
    metrics = Evaluator(data, trainer, collective, monitor).evaluate(split, answers=answers)
    if not math.isfinite(loss := metrics[f"{split}_loss"]):
        error = DataError(f"the loss on {split} is {loss} ({run.folder}, {trained.weights['checkpoint']})")
        error.is_reported = not collective.is_root
        raise error
    return run, {
        "split": split,
        "examples": data.readers[split].total,
        "loss": loss,
        "accuracy": metrics[f"{split}_accuracy"],
        "skipped": metrics.get(f"{split}_skipped", 0),
        **trained.weights,
        "evaluated_slices": dataset.fingerprint,
    }


def finish(run: Run, wanted: Evaluation, result: dict[str, Any], ranks: int, record: RunRecord) -> None:
    """Write the result and print it.

    Raises DataError if the accuracy is below what is wanted, EnvironmentFailure if the run was removed meanwhile.
    """
    if not has_begun(run.folder):  # its folder is not made again
        raise EnvironmentFailure(f"{run.folder} was removed while it was evaluated; give --run NAME of another run")
    place = run.folder / f"evaluation-{wanted.split}.json"
    staging = run.folder / f"_evaluation-{token_hex(4)}"  # its own: a trainer or another evaluation may be at work
    try:
        replace_bytes(place, staging.make_folder(), json_bytes({"format": FORMAT, **result}))
    finally:
        staging.delete()
    shown = {"loss": round(result["loss"], 4), "accuracy": round(result["accuracy"], 4)}
    facts = {"model": run.settings.recipe.model, "ranks": ranks, **result, **shown}
    facts["seconds"] = round(record.seconds, 1)
    Summary("evaluate", str(run.folder), False, facts).show(wanted.json)
    if wanted.min_accuracy is not None and result["accuracy"] < wanted.min_accuracy:
        raise DataError(
            f"accuracy {result['accuracy']:.4f} on {wanted.split} is below --min-accuracy {wanted.min_accuracy:g}"
            f" ({run.folder}, {result['checkpoint']})"
        )

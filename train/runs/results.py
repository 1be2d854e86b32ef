"""What rank 0 prints about a run and writes to its folder."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from etl.progress import Progress
from etl.stages.names import RECIPE_FILE, RESULT_FILE, RUN_FILE, RUN_SLICES_FILE, WORK_FOLDER
from etl.stages.summary import Summary
from etl.storage.atomic import replace_bytes, withdraw
from etl.storage.place import json_bytes
from train.monitor.monitor import Monitor
from train.parallel.collective import Collective
from train.parallel.trainer import StepOfRank, Trainer
from train.runs.confusion import Confusion, confusion_file
from train.runs.consistency import counted
from train.runs.data import Data
from train.runs.folder import RESULT_FORMAT
from train.runs.learning_rate import schedule_notes
from train.runs.metrics import shares, sums_over
from train.runs.position import Metrics, Position
from train.runs.run import Run

Weights = dict[str, int]  # the epoch and the step after which they were the model's


@dataclass(frozen=True)
class Result:
    """Metrics of the test split, the weights that they are of, and the confusion; ``reason`` is why the run is over."""

    reason: str
    metrics: Metrics
    weights: Weights
    confusion: Confusion


class Reporter:
    """What rank 0 prints about a run and writes to its folder; on the other ranks it does nothing."""

    def __init__(self, run: Run, data: Data, collective: Collective, monitor: Monitor) -> None:
        self._run, self._data, self._collective, self._log = run, data, collective, monitor.log
        self._was_over = False

    def begin(self, trainer: Trainer, position: Position, reason: str, was_over: bool) -> None:
        """Write the run's recipe, and which slices it reads, and log what is about to happen.

        ``reason`` is why there is nothing to train; if it is empty, the result of before is removed. ``was_over``: a
        process before this one has ended the run.
        """
        self._was_over = was_over
        self._collective.run_on_root(lambda: self._write_begin(reason))
        if self._collective.is_root:
            for line in begin_lines(self._run, self._data, trainer, position, reason):
                self._log(line)

    def _write_begin(self, reason: str) -> None:
        run = self._run
        for name in () if reason else (RESULT_FILE, confusion_file("test"), RUN_FILE):
            withdraw(run.folder / name, run.staging)
        replace_bytes(run.folder / RECIPE_FILE, run.staging, run.settings.as_recipe().encode())
        record = json_bytes({"slices": run.identity["slices"]})  # so that they are not pruned before a checkpoint
        replace_bytes(run.folder / WORK_FOLDER / RUN_SLICES_FILE, run.staging, record)

    @contextmanager
    def progress(self, position: Position) -> Iterator[Callable[[Position, Sequence[StepOfRank]], None]]:
        """A progress bar of what is left of an epoch; yields a function that shows a position and the recent steps."""
        title, state = f"train epoch {position.epoch}/{self._run.settings.stopping.epochs}", position.reader
        is_quiet, size = not self._collective.is_root, self._data.size
        with Progress(title, state.steps.number, "steps", quiet=is_quiet, begins=False) as bar:
            bar.skip(state.taken)
            yield (lambda now, recent: None if is_quiet else bar.update(now.reader.taken, describe_steps(recent, size)))

    def epoch(self, position: Position) -> None:
        """Log the metrics of the epoch before ``position``."""
        if self._collective.is_root:
            metrics = position.history[-1].items()
            shown = ", ".join(f"{name} {value:,.4g}" for name, value in metrics if name != "epoch")
            self._log(f"epoch {position.epoch - 1}/{self._run.settings.stopping.epochs}: {shown}")

    def end(self, position: Position, result: Result) -> None:
        """Write the result, its marker last; print the summary."""
        self._collective.run_on_root(lambda: write_result(self._run, position, result))
        if self._collective.is_root:
            summary = summary_of(self._run, self._data, position, result, self._was_over)
            summary.show(self._run.settings.json, self._run.settings.verbose)


def describe_steps(recent: Sequence[StepOfRank], size: int) -> str:
    """Loss, accuracy, speed, and what the time was spent on, in ``recent`` steps of one of ``size`` shares. Pure."""
    if not recent:
        return ""
    loss, hits, examples = sums_over(recent)
    seconds = sum(each.step_s for each in recent)
    of_time = ", ".join(f"{name} {share:.0%}" for name, share in shares(recent).items())
    found, rate = max(1.0, examples), examples * size / seconds
    return f"loss {loss / found:.3f}, accuracy {hits / found:.3f}, {rate:,.0f} images/s ({of_time})"


def begin_lines(run: Run, data: Data, trainer: Trainer, position: Position, reason: str) -> Iterator[str]:
    """What is about to happen. ``reason`` is why a run is over already; else it is empty."""
    settings, total = run.settings, data.train.total
    to_do = f"it is over ({reason})" if reason else f"epochs {position.epoch} to {settings.stopping.epochs}"
    yield f"{run.folder}: {settings.recipe.model} of {trainer.parameters:,} parameters, {to_do}"
    state = position.reader
    slices = counted(len(run.manifest.splits["train"]), "slice")
    taken = total - state.examples_left
    begun = f", from step {position.step} on, {taken:,} examples into epoch {position.epoch}" if position.step else ""
    each = "each rank" if data.local_replicas == 1 else f"each of {data.local_replicas} replicas"
    shared = "all ranks" if data.size == 1 else f"each {data.ranks // data.size} ranks"
    where = each if data.ranks == data.size else f"{shared} together"
    steps = f"{position.steps_left} steps of {settings.recipe.wording} on {where}"
    yield f"{total:,} examples in {slices} on {counted(data.ranks, 'rank')}: {steps}{begun}"
    if settings.verbose:
        order = data.train.order(state.seed, state.epoch, state.window_blocks)
        for rank, (count, records) in enumerate(data.train.shares(order, state.rest, data.size)):
            yield f"rank {rank}: {records:,} records of {counted(count, 'slice')}"
    if not reason:
        yield from notes(run, data, position)
    yield from trainer.notes


def notes(run: Run, data: Data, position: Position) -> Iterator[str]:
    """What a user may not expect of the learning rate, and of the split that selects the weights."""
    stopping, last_epoch = run.settings.stopping, math.inf
    if stopping.max_steps is not None:
        whole = max(1, data.begin_epoch(position.epoch).steps.number)
        last_epoch = position.epochs_after(stopping.max_steps - position.step, data.train.total, whole)
    yield from schedule_notes(run.settings, data.global_batch, last_epoch)
    if data.score_split == "test" and "test" in data.readers:
        yield (
            "without a validation split, the best checkpoint, --patience and --until-accuracy go by the test split, so"
            " the accuracy on it does not measure other images; for a validation split: ringslice shard --split"
            " train=0.8,validation=0.1,test=0.1"
        )


def write_result(run: Run, position: Position, result: Result) -> None:
    """Write the result of a run, its marker last."""
    replace_bytes(run.folder / RUN_FILE, run.staging, json_bytes(run.record.finished()))
    confusion = result.confusion
    if confusion.counts.any():
        replace_bytes(run.folder / confusion_file(confusion.split), run.staging, json_bytes(confusion.to_json()))
    marker = {
        "format": RESULT_FORMAT,
        **run.identity,
        "settings": {**run.identity["settings"], **asdict(run.settings.stopping)},
        "steps": position.step,
        "rolled_back_steps": position.rolled_back,
        "stopped": result.reason,
        "epochs": list(position.history),
        "weights": result.weights,
        "result": result.metrics,
    }
    replace_bytes(run.folder / RESULT_FILE, run.staging, json_bytes(marker))


def summary_of(run: Run, data: Data, position: Position, result: Result, was_over: bool) -> Summary:
    """The summary of a run, which ``was_over`` before it began."""
    epoch, last = result.weights["epoch"], position.history[-1] if position.history else {}
    of_weights = next((each for each in position.history if each["epoch"] == epoch), last)
    measured = {name: round(value, 4) for name, value in ({**of_weights} | result.metrics).items() if name != "epoch"}
    facts = {
        "model": run.settings.recipe.model,
        "ranks": data.ranks,
        **({} if data.replicas == data.ranks else {"replicas": data.replicas}),
        "epochs": len(position.history),
        "steps": position.step,
        "global_batch": data.global_batch,
        **measured,
        "weights": result.weights,
        "seconds": round(run.seconds, 1),
    }
    accuracies = (name for name in (f"{data.score_split}_accuracy", "test_accuracy") if name in measured)
    brief = ("ranks", "epochs", "steps", *dict.fromkeys(accuracies), "seconds")
    return Summary("train", str(run.folder), was_over, facts, brief=brief)

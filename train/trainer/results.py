"""What rank 0 tells of a run and writes down of it."""

import math
from collections.abc import Sequence
from dataclasses import asdict

from etl.progress import Progress
from etl.stages.run_files import RECIPE_FILE, RESULT_FILE, RUN_SLICES_FILE, confusion_file
from etl.stages.stage import RUN_FILE, WORK_FOLDER, Run
from etl.stages.summary import Summary
from etl.storage.atomic import replace_bytes, withdraw
from etl.storage.json_files import json_bytes
from train.runs.confusion import Confusion
from train.runs.folder import RESULT_FORMAT
from train.runs.metrics import StepOfRank, shares, sums_over
from train.runs.position import Metrics, Position
from train.tf_backend.records_op import why_not_native
from train.trainer.learning_rate import schedule_notes
from train.trainer.rank_consistency import counted
from train.trainer.session import Session

Weights = dict[str, int]  # the epoch and the step after which they were the model's


def describe(session: Session, over: str) -> None:
    """Rank 0 writes down how the run is trained, and which slices it reads, before it has a checkpoint that tells: so
    they are not pruned. The result of a run that goes on, of before, is taken away.
    """
    for name in () if over else (RESULT_FILE, confusion_file("test"), RUN_FILE):
        withdraw(session.run / name, session.attempts)
    replace_bytes(session.run / RECIPE_FILE, session.attempts, session.settings.as_recipe().encode())
    record = json_bytes({"slices": session.identity["slices"]})
    replace_bytes(session.run / WORK_FOLDER / RUN_SLICES_FILE, session.attempts, record)


def announce(session: Session, position: Position, over: str) -> None:
    """Rank 0 says what is about to happen."""
    if not session.is_root:
        return
    settings, size = session.settings, session.strategy.size
    parameters, epochs = session.model.count_params(), settings.stopping.epochs
    to_do = f"it is over ({over})" if over else f"epochs {position.epoch} to {epochs}"
    session.monitor.log(f"{session.run}: {settings.recipe.model} of {parameters:,} parameters, {to_do}")
    reader, state = session.readers["train"], position.reader
    slices = counted(len(session.manifest.splits["train"]), "slice")
    taken = session.examples - state.examples_left
    begun = f", from step {position.step} on, {taken:,} examples into epoch {position.epoch}" if position.step else ""
    steps = f"{state.steps.number - state.taken} steps of {settings.recipe.wording} on each rank"
    session.monitor.log(f"{session.examples:,} examples in {slices} on {counted(size, 'rank')}: {steps}{begun}")
    if settings.verbose:
        order = reader.order(state.seed, state.epoch, state.window_blocks)
        for rank, (count, records) in enumerate(reader.shares(order, state.rest, size)):
            session.monitor.log(f"rank {rank}: {records:,} records of {counted(count, 'slice')}")
    if not over:
        say_notes(session, position)
    if reason := why_not_native():
        session.monitor.log(f"the reader's native op is {reason}, so examples take more time; run: make install")


def say_notes(session: Session, position: Position) -> None:
    """What a user may not expect of the learning rate, and of the split that selects the weights."""
    settings, last_epoch = session.settings, math.inf
    if settings.stopping.max_steps is not None:
        whole = max(1, session.epoch_begin(position.epoch).steps.number)
        to_take = settings.stopping.max_steps - position.step
        last_epoch = position.epochs_after(to_take, session.examples, whole)
    for note in schedule_notes(settings, session.global_batch, last_epoch):
        session.monitor.log(note)
    if session.judge == "test" and "test" in session.readers:
        session.monitor.log(
            "without a validation split, the best checkpoint, --patience and --until-accuracy go by the test split, so"
            " the accuracy on it is no measure of other images; for a validation split: ringslice shard --split"
            " train=0.8,validation=0.1,test=0.1"
        )


def show_progress(progress: Progress, step: int, recent: Sequence[StepOfRank], global_batch: int) -> None:
    """Show how the ``recent`` steps went, as this rank sees it."""
    if not recent:
        return progress.update(step)
    loss, hits, examples = sums_over(recent)
    seconds = sum(each.step_s for each in recent)
    of_time = ", ".join(f"{name} {share:.0%}" for name, share in shares(recent).items())
    found = max(1.0, examples)
    rate = global_batch * len(recent) / seconds
    progress.update(step, f"loss {loss / found:.3f}, accuracy {hits / found:.3f}, {rate:,.0f} images/s ({of_time})")


def tell_epoch(session: Session, position: Position) -> None:
    """Rank 0 says how the epoch before ``position`` went."""
    if session.is_root:
        told = ", ".join(f"{name} {value:,.4g}" for name, value in position.history[-1].items() if name != "epoch")
        session.monitor.log(f"epoch {position.epoch - 1}/{session.settings.stopping.epochs}: {told}")


def write_result(
    session: Session, position: Position, over: str, result: tuple[Metrics, Weights, Confusion], clock: Run
) -> None:
    """Rank 0 writes down the result, its marker last."""
    metrics, weights, confusion = result
    replace_bytes(session.run / RUN_FILE, session.attempts, json_bytes(clock.finished()))
    if confusion.counts.any():
        replace_bytes(session.run / confusion_file(confusion.split), session.attempts, json_bytes(confusion.to_json()))
    marker = {
        "format": RESULT_FORMAT,
        **session.identity,
        "settings": {**session.identity["settings"], **asdict(session.settings.stopping)},
        "steps": position.step,
        "rolled_back_steps": position.rolled_back,
        "stopped": over,
        "epochs": list(position.history),
        "weights": weights,
        "result": metrics,
    }
    replace_bytes(session.run / RESULT_FILE, session.attempts, json_bytes(marker))


def show(session: Session, position: Position, result: tuple[Metrics, Weights], clock: Run, already_done: bool) -> None:
    """Rank 0 shows the summary."""
    metrics, weights = result
    last = position.history[-1] if position.history else {}
    measured = {name: round(value, 4) for name, value in ({**last} | metrics).items() if name != "epoch"}
    facts = {
        "model": session.settings.recipe.model,
        "ranks": session.strategy.size,
        "epochs": len(position.history),
        "steps": position.step,
        "global_batch": session.global_batch,
        **measured,
        "weights": weights,
        "seconds": round(clock.seconds, 1),
    }
    accuracies = (name for name in (f"{session.judge}_accuracy", "test_accuracy") if name in measured)
    brief = ("ranks", "epochs", "steps", *dict.fromkeys(accuracies), "seconds")
    summary = Summary("train", str(session.run), already_done, facts, brief=brief)
    summary.show(session.settings.json, session.settings.verbose)

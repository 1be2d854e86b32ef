"""What rank 0 tells of a run and writes down of it."""

from dataclasses import asdict
from itertools import islice

from etl.progress import Progress
from etl.stages.run_files import RECIPE_FILE, RESULT_FILE, RUN_SLICES_FILE, confusion_file
from etl.stages.stage import RUN_FILE, WORK_FOLDER, Run
from etl.stages.summary import Summary
from etl.storage.atomic import replace_bytes, withdraw
from etl.storage.json_files import json_bytes
from train.input.records_op import why_not_native
from train.monitor.rank_process import say
from train.runs.confusion import Confusion
from train.runs.folder import RESULT_FORMAT
from train.runs.metrics import shares, sums_over
from train.runs.position import Metrics, Position
from train.trainer.commits import Tally
from train.trainer.session import Session

RANKS_TOLD = 16
LAST_STEPS = 20  # that a progress bar tells of


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
    say(f"{session.run}: {settings.recipe.model} of {parameters:,} parameters, {to_do}")
    reader, state = session.readers["train"], position.reader
    batch = settings.recipe.examples_per_step
    steps = reader.steps(state, batch, settings.recipe.drop_last)
    of_ranks = f"{session.examples:,} examples in {len(session.manifest.splits['train'])} slices on {size} ranks"
    taken = session.examples - state.examples_left
    begun = f", from step {position.step} on, {taken:,} examples into epoch {position.epoch}" if position.step else ""
    say(f"{of_ranks}: {steps.number - state.taken // batch} steps of {batch} each{begun}")
    order = reader.order(state.seed, state.epoch, state.window_blocks)
    for rank, (slices, records) in enumerate(islice(reader.shares(order, state.rest, size), RANKS_TOLD)):
        say(f"rank {rank}: {records:,} records of {slices} slices")
    if size > RANKS_TOLD:
        say(f"and so on: no two of the {size} ranks differ by more than one record")
    if reason := why_not_native():
        say(f"the reader's native op is {reason}, so examples take more time; run: make install")


def tell_progress(progress: Progress, step: int, tally: Tally, global_batch: int) -> None:
    """Show how the last steps went, as this rank sees it."""
    last = tally.steps[-LAST_STEPS:]
    if not last:
        return progress.update(step)
    loss, hits, examples = sums_over([last])
    seconds = sum(each.step_s for each in last)
    of_time = ", ".join(f"{name} {share:.0%}" for name, share in shares(last).items())
    found = max(1.0, examples)
    rate = global_batch * len(last) / seconds
    progress.update(step, f"loss {loss / found:.3f}, accuracy {hits / found:.3f}, {rate:,.0f} images/s ({of_time})")


def tell_epoch(session: Session, position: Position) -> None:
    """Rank 0 says how the epoch before ``position`` went."""
    if session.is_root:
        told = ", ".join(f"{name} {value:,.4g}" for name, value in position.history[-1].items() if name != "epoch")
        say(f"epoch {position.epoch - 1}: {told}")


def write_result(
    session: Session, position: Position, over: str, result: tuple[Metrics, Confusion], clock: Run
) -> None:
    """Rank 0 writes down the result, its marker last."""
    metrics, confusion = result
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
        "result": metrics,
    }
    replace_bytes(session.run / RESULT_FILE, session.attempts, json_bytes(marker))


def show(session: Session, position: Position, result: Metrics, clock: Run, already_done: bool) -> None:
    """Rank 0 shows the summary."""
    last = position.history[-1] if position.history else {}
    facts = {
        "model": session.settings.recipe.model,
        "ranks": session.strategy.size,
        "epochs": len(position.history),
        "steps": position.step,
        "global_batch": session.global_batch,
        **{name: round(value, 4) for name, value in ({**last} | result).items() if name != "epoch"},
        "seconds": round(clock.seconds, 1),
    }
    Summary("train", str(session.run), already_done, facts).show(session.settings.json)

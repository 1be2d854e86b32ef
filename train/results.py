"""What rank 0 tells of a run and writes down of it."""

from itertools import islice

from etl.prune import RUN_SLICES_FILE
from etl.publishing import json_bytes, replace_bytes
from etl.stages import RUN_FILE, WORK_FOLDER, Run
from etl.summary import Summary
from train.position import Metrics, Position
from train.ranks import say
from train.records_op import why_not_native
from train.runs import RESULT_FORMAT
from train.session import Session

RANKS_TOLD = 16


def name_slices(session: Session) -> None:
    """Rank 0 writes down which slices the run reads, before it has a checkpoint that tells: so they are not pruned."""
    record = json_bytes({"slices": session.identity["slices"]})
    replace_bytes(session.run / WORK_FOLDER / RUN_SLICES_FILE, session.attempts, record)


def announce(session: Session, position: Position) -> None:
    """Rank 0 says what is about to happen."""
    if not session.is_root:
        return
    settings, size = session.settings, session.strategy.size
    parameters = session.model.count_params()
    over = position.epoch - 1
    epochs = (
        f"epochs {position.epoch} to {settings.epochs}" if over < settings.epochs else f"its {over} epochs are done"
    )
    say(f"{session.run}: {settings.model} of {parameters:,} parameters, {epochs}")
    reader, state = session.readers["train"], position.reader
    steps = reader.steps(state, settings.batch, settings.drop_last)
    of_ranks = f"{session.examples:,} examples in {len(session.manifest.splits['train'])} slices on {size} ranks"
    taken = session.examples - state.examples_left
    begun = f", from step {position.step} on, {taken:,} examples into epoch {position.epoch}" if position.step else ""
    say(f"{of_ranks}: {steps.number - state.taken // settings.batch} steps of {settings.batch} each{begun}")
    order = reader.order(state.seed, state.epoch, state.window_blocks)
    for rank, (slices, records) in enumerate(islice(reader.shares(order, state.rest, size), RANKS_TOLD)):
        say(f"rank {rank}: {records:,} records of {slices} slices")
    if size > RANKS_TOLD:
        say(f"and so on: no two of the {size} ranks differ by more than one record")
    if reason := why_not_native():
        say(f"the reader's native op is {reason}, so examples take more time; run: make install")


def tell_epoch(session: Session, position: Position, metrics: Metrics) -> None:
    """Rank 0 says how an epoch went."""
    if session.is_root:
        told = ", ".join(f"{name} {value:,.4g}" for name, value in metrics.items())
        say(f"epoch {position.epoch}: {told}")


def write_result(session: Session, position: Position, result: Metrics, clock: Run) -> None:
    """Rank 0 writes down the result, its marker last."""
    replace_bytes(session.run / RUN_FILE, session.attempts, json_bytes(clock.finished()))
    settings = {**session.identity["settings"], "epochs": session.settings.epochs}
    marker = {
        "format": RESULT_FORMAT,
        **session.identity,
        "settings": settings,
        "steps": position.step,
        "rolled_back_steps": position.rolled_back,
        "epochs": list(position.history),
        "result": result,
    }
    replace_bytes(session.run / "result.json", session.attempts, json_bytes(marker))


def show(session: Session, position: Position, result: Metrics, clock: Run, already_done: bool) -> None:
    """Rank 0 shows the summary."""
    last = position.history[-1] if position.history else {}
    facts = {
        "model": session.settings.model,
        "ranks": session.strategy.size,
        "epochs": session.settings.epochs,
        "global_batch": session.settings.batch * session.strategy.size,
        **{name: round(value, 4) for name, value in ({**last} | result).items() if name != "epoch"},
        "seconds": round(clock.seconds, 1),
    }
    Summary("train", str(session.run), already_done, facts).show(session.settings.json)

"""The trainer's loop: next batch, step, commit; evaluate; checkpoint.

The step itself (gradients, all-reduce, apply) is in `train.trainer.steps`.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from etl.progress import Progress
from etl.stages.stage import Run
from train.config.settings import Settings
from train.config.stopping import NO_PROGRESS, scores_of
from train.monitor.heartbeat import READING
from train.monitor.monitor import Monitor
from train.monitor.rank_process import is_elastic
from train.parallel.elastic import Membership, in_rings
from train.parallel.strategy import Horovod, Strategy, telling_lost_peers
from train.runs.confusion import Confusion
from train.runs.hooks import NO_HOOKS, Hooks
from train.runs.position import Metrics, Position
from train.tf_backend.decode import epoch_seed
from train.tf_backend.devices import take_device
from train.trainer.commits import Keeper, Memory, keeping
from train.trainer.divergence import diverged
from train.trainer.evaluation import take_best
from train.trainer.restore import require_resumable
from train.trainer.results import announce, describe, show, show_progress, tell_epoch, write_result
from train.trainer.run_lease import holding
from train.trainer.session import Session, prepare
from train.trainer.step_runner import StepRunner
from train.trainer.steps import compile_steps, evaluate, skipped


def train(settings: Settings, monitor: Monitor, strategy: Strategy | None = None, hooks: Hooks = NO_HOOKS) -> None:
    """Train as ``settings`` say, on all ranks that horovodrun started (or of ``strategy``), or will have started."""
    take_device(settings.device)
    memory = Memory()
    if strategy is None and is_elastic():
        settings = settings.of_elastic()
        in_rings(lambda ring, members: train_in_ring(settings, monitor, ring, memory, members, hooks=hooks), monitor)
    else:
        with telling_lost_peers(monitor):
            train_in_ring(settings, monitor, strategy or Horovod(monitor), memory, hooks=hooks)


def train_in_ring(
    settings: Settings,
    monitor: Monitor,
    strategy: Strategy,
    memory: Memory,
    membership: Membership | None = None,
    *,
    hooks: Hooks,
) -> None:
    """Train on the ranks of ``strategy``, from where ``memory``, or a checkpoint, or nothing at all says."""
    ranks = strategy.gather({"rank": strategy.rank, "host": socket.gethostname(), "pid": os.getpid()})
    clock = Run(ranks=ranks)
    session = prepare(settings, monitor, strategy, memory.choice)
    session.started = memory.started
    strategy.from_root(lambda: None if memory.position else require_resumable(session))  # before anything is written
    with (
        holding(session.run, strategy, monitor) as session.attempts,
        keeping(session, memory, membership, hooks) as keeper,
    ):
        monitor.open_log(session.run)
        is_new = memory.position is None
        position = keeper.recall()
        over = why_over(session, position, seconds=0)  # a start that is given little time takes a step at least
        strategy.from_root(lambda: describe(session, over))
        already_done = is_new and over != ""
        train_step, evaluate_step = compile_steps(session)
        announce(session, position, over)

        while not over:
            if not position.trained:
                position = train_epoch(session, position, keeper, train_step)
                keeper.end_steps(position)
            if position.trained:
                metrics = hooks.on_evaluation(session.judge, lambda: evaluate(session, session.judge, evaluate_step))
                keeper.require_finite_loss(position.step, session.judge, metrics)
                position = position.next_epoch(session.epoch_begin(position.epoch + 1), metrics)
                keeper.end_epoch(position, metrics.get(f"{session.judge}_accuracy"))
                tell_epoch(session, position)
            over = why_over(session, position, session.seconds)

        strategy.from_root(keeper.finish)
        weights = take_best(session, position.history) if over == NO_PROGRESS else {}
        weights = weights or {"epoch": position.last_epoch, "step": position.step}
        confusion = Confusion("test", session.manifest.classes)
        result = hooks.on_evaluation("test", lambda: evaluate(session, "test", evaluate_step, confusion))
        keeper.require_finite_loss(weights["step"], "test", result)
        strategy.from_root(lambda: write_result(session, position, over, (result, weights, confusion), clock))
    if session.is_root:
        show(session, position, (result, weights), clock, already_done)
    strategy.leave()


def why_over(session: Session, position: Position, seconds: float) -> str:
    """Why no more steps follow, on which all ranks agree; empty where they do, or an evaluation is still to come."""
    if position.trained:
        return ""
    scores = scores_of(position.history, session.judge)
    why = session.settings.stopping.why
    return session.strategy.from_root(lambda: why(position.epoch, position.step, scores, seconds))


def train_epoch(session: Session, position: Position, keeper: Keeper, train_step: Callable[..., Any]) -> Position:
    """The rest of a pass over the training split, or as much of it as the run is to take.

    Returns where it ends, which is committed, with the metrics over all ranks if the pass is over.
    """
    recipe, strategy, monitor = session.settings.recipe, session.strategy, session.monitor
    reader = session.readers["train"]
    started, before = time.monotonic(), position.totals[-1]
    order = reader.order(position.reader.seed, position.epoch, position.reader.window_blocks)
    steps = position.reader.steps
    records = reader.batches(order, steps, strategy.rank, position.reader.left, position.reader.taken)
    pictures = session.augmented.epoch(records, epoch_seed(recipe.seed, position.epoch))
    runner = StepRunner(session, train_step)
    title = f"train epoch {position.epoch}/{session.settings.stopping.epochs}"
    with (
        closing(pictures),
        Progress(title, steps.number, "steps", quiet=not session.is_root, begins=False) as progress,
    ):
        progress.skip(position.reader.taken)
        monitor.phase(READING, position.epoch, position.step + 1)
        for batch in runner.batches(pictures):
            monitor.phase("stepping")
            rate = session.schedule.rate(position.epochs_done(reader.total), session.global_batch)
            keeper.add(runner.take(batch, position.step, rate))
            position = position.after_step()
            keeper.after_step(position)
            is_epoch_over = position.reader.taken == steps.number
            if is_epoch_over or keeper.is_report_due(position.step):
                keeper.add(runner.finish())
                position = keeper.report(position, is_epoch_over)
            if session.is_root:
                show_progress(progress, position.reader.taken, keeper.recent, session.global_batch)
            monitor.phase(READING, step=position.step + 1)
            if keeper.is_over(position.step):
                break
    if position.reader.taken < steps.number:
        return position
    rate = (position.totals[-1] - before) / (time.monotonic() - started)
    return replace(position, trained=metrics_of_pass(session, position, rate))


def metrics_of_pass(session: Session, position: Position, images_per_s: float) -> Metrics:
    """The training metrics of an epoch whose steps are all taken. Raises DataError if none had a finite loss."""
    loss, counted, hits, examples = position.totals
    if examples and not counted:
        raise diverged(session, f"no step of epoch {position.epoch} has a finite loss")
    left_out = session.examples - position.reader.examples_left - examples
    return {
        "train_loss": loss / max(1.0, counted),
        "train_accuracy": hits / max(1.0, examples),
        "images_per_s": round(images_per_s, 2),
        **skipped("train", left_out),
    }

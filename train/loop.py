"""The trainer's loop, from top to bottom: next batch, gradients, all-reduce, apply; commit; evaluate; checkpoint."""

import os
import socket
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from etl.errors import EnvironmentFailure
from etl.progress import Progress
from etl.stages import Run
from train.decoding import epoch_seed
from train.devices import take_device
from train.elastic import Membership, in_rings
from train.holding import holding
from train.keeping import Keeper, Memory, keeping, require_resumable
from train.position import Metrics, Position
from train.pulse import PULSE, READING
from train.ranks import is_elastic, open_log
from train.reading import STOP
from train.results import announce, name_slices, show, tell_epoch, write_result
from train.session import Session, prepare
from train.settings import Settings
from train.steps import Steps
from train.strategies import Horovod, Strategy, telling_lost_peers

EVALUATION_EPOCH = 0  # its order is that of every evaluation


def train(settings: Settings, strategy: Strategy | None = None) -> None:
    """Train as ``settings`` say, on all ranks that horovodrun started (or of ``strategy``), or will have started."""
    take_device(settings.device)
    memory = Memory()
    if strategy is None and is_elastic():
        settings = settings.of_elastic()
        in_rings(lambda ring, membership: train_in_ring(settings, ring, memory, membership))
    else:
        with telling_lost_peers():
            train_in_ring(settings, strategy or Horovod(), memory)


def train_in_ring(settings: Settings, strategy: Strategy, memory: Memory, membership: Membership | None = None) -> None:
    """Train on the ranks of ``strategy``, from where ``memory``, or a checkpoint, or nothing at all says."""
    ranks = strategy.gather({"rank": strategy.rank, "host": socket.gethostname(), "pid": os.getpid()})
    clock = Run(ranks=ranks)
    session = prepare(settings, strategy, memory.choice)
    strategy.from_root(lambda: None if memory.position else require_resumable(session))  # before anything is written
    with holding(session.run, strategy) as session.attempts, keeping(session, memory, membership) as keeper:
        open_log(session.run)
        is_new = memory.position is None
        position = keeper.recall()
        strategy.from_root(lambda: name_slices(session))
        already_done = is_new and position.epoch > settings.epochs
        train_step, evaluate_step = compile_steps(session)
        announce(session, position)

        while position.epoch <= settings.epochs:
            position, metrics = train_epoch(session, position, keeper, train_step)
            metrics |= evaluate(session, session.judge, evaluate_step)
            tell_epoch(session, position, metrics)
            position = position.next_epoch(session.epoch_begin(position.epoch + 1), metrics)
            keeper.end_epoch(position, metrics.get(f"{session.judge}_accuracy"))

        result = evaluate(session, "test", evaluate_step)
        strategy.from_root(keeper.finish)
        strategy.from_root(lambda: write_result(session, position, result, clock))
    if session.is_root:
        show(session, position, result, clock, already_done)
    strategy.leave()


def compile_steps(session: Session) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The training step and the evaluation step, as graphs. Both return this rank's sums of loss, hits and examples.

    A step's loss is the sum over the examples of all ranks, divided by their number, which is reduced along with the
    gradients: examples that only fill a batch up have weight 0, so a step of n ranks is the step of one rank fed the
    concatenation of their batches, whatever was skipped.
    Without autograph: nothing here needs it, and it leaves files in $TMPDIR.
    """
    model, optimizer, strategy = session.model, session.optimizer, session.strategy

    def sums(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        hits = tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)
        return [tf.reduce_sum(losses * weights), tf.reduce_sum(hits * weights), tf.reduce_sum(weights)]

    @tf.function(autograph=False)
    def train_step(pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            results = sums(model(pixels, training=True), labels, weights)
        gradients = tape.gradient(results[0], [variable.value for variable in model.trainable_variables])
        *gradients, examples = strategy.average([*gradients, results[2]])
        optimizer.apply([tf.math.divide_no_nan(gradient, examples) for gradient in gradients])
        return results

    @tf.function(autograph=False)
    def evaluate_step(pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
        return sums(model(pixels, training=False), labels, weights)

    return train_step, evaluate_step


def train_epoch(
    session: Session, position: Position, keeper: Keeper, train_step: Callable[..., Any]
) -> tuple[Position, Metrics]:
    """The rest of a pass over the training split; returns where it ends, and metrics over all ranks."""
    settings, strategy, reader = session.settings, session.strategy, session.readers["train"]
    started, before = time.monotonic(), position.totals[-1]
    order = reader.order(position.reader.seed, position.epoch, position.reader.window_blocks)
    steps = reader.steps(position.reader, settings.batch, settings.drop_last)
    first = position.reader.taken // settings.batch
    batches = reader.batches(order, steps, strategy.rank, position.reader.left, first)
    pictures = session.augmented.epoch(batches, epoch_seed(settings.seed, position.epoch))
    title = f"train epoch {position.epoch}"
    with Progress(title, steps.number, "steps", quiet=not session.is_root, ends=False) as progress:
        progress.skip(first)
        PULSE.enters(READING, position.epoch, position.step + 1)
        for step, batch in enumerate(pictures, first + 1):
            PULSE.enters("stepping")
            session.optimizer.learning_rate = session.schedule.rate(position.epochs_done(reader.total), strategy.size)
            results = train_step(batch.pixels, batch.labels, batch.weights)
            keeper.tally.add(results, batch.keys[batch.weights > 0] if settings.audit else None)
            position = keeper.after_step(position.after_step(settings.batch), last=step == steps.number)
            progress.update(step)
            PULSE.enters(READING, step=position.step + 1)
    position = keeper.commit(position)
    keeper.check_members()
    loss, hits, examples = position.totals
    metrics = {"train_loss": loss / examples, "train_accuracy": hits / examples}
    metrics["images_per_s"] = round((examples - before) / (time.monotonic() - started))
    return position, metrics | skipped("train", reader.total - position.reader.examples_left - examples)


def evaluate(session: Session, split: str, evaluate_step: Callable[..., Any]) -> Metrics:
    """Loss and accuracy over every example of a split, each counted exactly once, over all ranks; empty without it.

    Raises EnvironmentFailure where the ranks together saw another number of examples than the manifest tells of, and
    none may be skipped.
    """
    if split not in session.readers:
        return {}
    reader, strategy = session.readers[split], session.strategy
    order = reader.order(session.settings.seed, EVALUATION_EPOCH)
    steps = Steps(reader.total, strategy.size, session.settings.batch)
    totals = [0.0, 0.0, 0.0]
    PULSE.enters(f"{READING} {split}")
    for batch in session.plain.epoch(reader.batches(order, steps, strategy.rank)):
        results = evaluate_step(batch.pixels, batch.labels, batch.weights)
        totals = [total + float(value) for total, value in zip(totals, results, strict=True)]
        PULSE.ticks()
    loss, hits, examples = strategy.sum(totals)
    if examples != reader.total and reader.reading.on_damage == STOP:
        raise EnvironmentFailure(f"{examples:.0f} examples of {split} were evaluated, it has {reader.total}")
    metrics = {f"{split}_loss": loss / examples, f"{split}_accuracy": hits / examples}
    return metrics | skipped(split, reader.total - examples)


def skipped(split: str, examples: float) -> Metrics:
    """What is told of damaged examples that were left out, over all ranks: nothing where there were none."""
    return {f"{split}_skipped": int(examples)} if examples else {}

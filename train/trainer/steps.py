"""The training step and the evaluation step as graphs, and the evaluation of a split."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from etl.errors import EnvironmentFailure
from train.config.recipe import FP16
from train.model.gradients import gradients_of, moment_after, sums_of
from train.monitor.heartbeat import PULSE, READING
from train.reader.config import STOP
from train.reader.intervals import Steps
from train.runs.confusion import Confusion
from train.runs.position import Metrics
from train.trainer.session import Session

EVALUATION_EPOCH = 0  # its order is that of every evaluation


def compile_steps(session: Session) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The training step and the evaluation step, as graphs.

    A step's loss is the sum over the examples of all ranks, divided by their number, which is reduced along with the
    gradients: examples that only fill a batch up have weight 0, so a step of n ranks is the step of one rank fed the
    concatenation of their batches, whatever was skipped.
    Without autograph: nothing here needs it, and it leaves files in $TMPDIR.
    """
    model, optimizer, strategy, recipe = session.model, session.optimizer, session.strategy, session.settings.recipe
    compute, deterministic = gradients_of(model, recipe, optimizer.scale_loss), session.settings.deterministic

    @tf.function(autograph=False)
    def train_step(
        pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, ends: tf.Tensor
    ) -> tuple[list[tf.Tensor], ...]:
        """This rank's `Sums`; moments before and after computing, and after reducing; above 0 where any rank ends."""
        begun = moment_after([weights], deterministic)
        with tf.control_dependencies([begun]):
            gradients, sums = compute(pixels, labels, weights)
        computed = moment_after(gradients, deterministic)
        *gradients, full, ends = strategy.average(
            [*gradients, sums[2] / recipe.examples_per_step, ends], half=recipe.compression == FP16
        )
        reduced = moment_after(gradients, deterministic)
        optimizer.apply([tf.math.divide_no_nan(gradient, full) for gradient in gradients])
        return sums, [begun, computed, reduced], [ends]

    @tf.function(autograph=False)
    def evaluate_step(pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """This rank's `Sums`, and the class that it takes each example for."""
        logits = model(pixels, training=False)
        return sums_of(logits, labels, weights), tf.argmax(logits, axis=-1)

    return train_step, evaluate_step


def evaluate(
    session: Session, split: str, evaluate_step: Callable[..., Any], confusion: Confusion | None = None
) -> Metrics:
    """Loss and accuracy over every example of a split, each counted exactly once, over all ranks; empty without it.

    Into ``confusion`` go the counts of what was taken for what, over all ranks too.

    Raises EnvironmentFailure where the ranks together saw another number of examples than the manifest tells of, and
    none may be skipped.
    """
    if split not in session.readers:
        return {}
    reader, strategy, recipe = session.readers[split], session.strategy, session.settings.recipe
    order = reader.order(recipe.seed, EVALUATION_EPOCH)
    steps = Steps(reader.total, strategy.size, recipe.batch)
    totals = [0.0, 0.0, 0.0]
    PULSE.enters(f"{READING} {split}")
    for batch in session.plain.epoch(reader.batches(order, steps, strategy.rank)):
        sums, predicted = evaluate_step(batch.pixels, batch.labels, batch.weights)
        totals = [total + float(value) for total, value in zip(totals, sums, strict=True)]
        if confusion is not None:
            confusion.add(batch.labels.numpy(), predicted.numpy(), batch.weights.numpy())
        PULSE.ticks()
    loss, hits, examples = strategy.sum(totals)
    if confusion is not None:
        confusion.sum_over_ranks(strategy.sum)
    if examples != reader.total and reader.reading.on_damage == STOP:
        raise EnvironmentFailure(f"{examples:.0f} examples of {split} were evaluated, it has {reader.total}")
    found = max(1.0, examples)
    metrics = {f"{split}_loss": loss / found, f"{split}_accuracy": hits / found}
    return metrics | skipped(split, reader.total - examples)


def skipped(split: str, examples: float) -> Metrics:
    """What is told of damaged examples that were left out, over all ranks: nothing where there were none."""
    return {f"{split}_skipped": int(examples)} if examples else {}

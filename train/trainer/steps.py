"""The training step and the evaluation step as graphs, and the evaluation of a split."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from etl.errors import EnvironmentFailure
from train.config.recipe import FP16
from train.monitor.heartbeat import READING
from train.reader.config import STOP
from train.reader.intervals import Steps
from train.runs.confusion import Confusion
from train.runs.position import Metrics
from train.tf_backend.gradients import gradients_of, moment_after, sums_of
from train.tf_backend.optimizer import apply_finite
from train.tf_backend.state import RandomDraws, running_statistics
from train.trainer.session import Session

EVALUATION_EPOCH = 0  # its order is that of every evaluation
NO_NUMBERS = (0.0,) * 4  # of the step before the first


def compile_steps(session: Session) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The training step and the evaluation step, as graphs.

    A step's loss is the sum over the examples of all ranks, divided by their number, which is reduced along with the
    gradients: padding has weight 0, so a step of n ranks is the step of one rank fed the concatenation of their
    batches, whatever was skipped. What a step changes in batch norm's running statistics is reduced, too, each rank's
    by its number of examples: after each step all ranks have the same model, and what it did not change is as it was.
    Without autograph: nothing here needs it, and it leaves files in $TMPDIR.
    """
    model, optimizer, strategy, recipe = session.model, session.optimizer, session.strategy, session.settings.recipe
    compute, deterministic = gradients_of(model, recipe, optimizer.scale_loss), session.settings.deterministic
    statistics = running_statistics(model) if strategy.size > 1 else []
    draws = RandomDraws(model, recipe.seed, strategy.rank)

    @tf.function(autograph=False)
    def train_step(
        pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, *, step: tf.Tensor, before: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The numbers of this step, on the device; ``before``, those of the step before, on the host; and, on the host,
        the moments before and after computing, and after reducing (float64 seconds).

        Numbers are float32 of shape (4,): this rank's `Sums`, and, equal on all ranks, 1 if the step was not taken
        because its gradient is not finite.
        """
        with tf.device("/CPU:0"):
            before = tf.identity(before)
        draws.begin(step)
        olds = [tf.identity(each.value) for each in statistics]
        begun = moment_after([weights], deterministic)
        with tf.control_dependencies([begun]):
            gradients, sums = compute(pixels, labels, weights)
        computed = moment_after(gradients, deterministic)
        own = sums[2] / recipe.examples_per_step
        changes = [tf.cast(each.value - old, own.dtype) for each, old in zip(statistics, olds, strict=True)]
        changes = [tf.math.multiply_no_nan(each, own) for each in changes]  # 0 of a rank that has but padding
        full, *changes = strategy.average([own, *changes])
        gradients = strategy.average_gradients(gradients, half=recipe.compression == FP16)
        reduced = moment_after(gradients, deterministic)
        for variable, old, change in zip(statistics, olds, changes, strict=True):
            variable.assign(old + tf.cast(tf.math.divide_no_nan(change, full), old.dtype))
        gradients = [tf.math.divide_no_nan(each, tf.cast(full, each.dtype)) for each in gradients]
        skips = apply_finite(optimizer, gradients, recipe)
        with tf.device("/CPU:0"):
            moments = tf.stack([begun, computed, reduced])
        return tf.stack([*sums, skips]), before, moments

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
    steps = Steps(reader.total, strategy.size, recipe.rank_batch)
    totals = [0.0, 0.0, 0.0]
    session.monitor.phase(f"{READING} {split}")
    for batch in session.plain.epoch(reader.batches(order, steps, strategy.rank)):
        session.monitor.local_phase(f"evaluating {split}")
        sums, predicted = evaluate_step(batch.pixels, batch.labels, batch.weights)
        totals = [total + float(value) for total, value in zip(totals, sums, strict=True)]
        if confusion is not None:
            confusion.add(batch.labels.numpy(), predicted.numpy(), batch.weights.numpy())
        session.monitor.local_phase(f"{READING} {split}")
    loss, hits, examples = strategy.sum(totals)
    if confusion is not None:
        confusion.sum_over_ranks(strategy.sum_array)
    if examples != reader.total and reader.reading.on_damage == STOP:
        raise EnvironmentFailure(f"{examples:.0f} examples of {split} were evaluated, it has {reader.total}")
    found = max(1.0, examples)
    metrics = {f"{split}_loss": loss / found, f"{split}_accuracy": hits / found}
    return metrics | skipped(split, reader.total - examples)


def skipped(split: str, examples: float) -> Metrics:
    """What is told of damaged examples that were left out, over all ranks: nothing where there were none."""
    return {f"{split}_skipped": int(examples)} if examples else {}

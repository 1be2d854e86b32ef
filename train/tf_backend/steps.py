"""The training step and the evaluation step as graphs."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from train.config.recipe import FP16
from train.config.settings import Settings
from train.tf_backend.gradients import gradients_of, moment_after, sums_of
from train.tf_backend.optimizer import apply_finite
from train.tf_backend.state import RandomDraws, running_statistics

NO_NUMBERS = (0.0,) * 4  # of the step before the first

Step = Callable[..., Any]


class Replicas(Protocol):
    """The copies of the model that one step trains, one on each rank; what they exchange within a graph."""

    rank: int
    size: int

    def average(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The mean over all ranks of each tensor, all reduced together."""
        ...

    def average_gradients(self, gradients: Sequence[tf.Tensor], half: bool = False) -> list[tf.Tensor]:
        """The mean over all ranks of each gradient, reduced as soon as it is computed; with ``half`` as float16."""
        ...

    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over all ranks, differentiable: its gradient is that of all ranks' results."""
        ...

    def broadcast(self, variables: Sequence[Any], root: int) -> None:
        """Give every rank the values that rank ``root`` has for these Keras variables."""
        ...


def compile_steps(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, replicas: Replicas, settings: Settings
) -> tuple[Step, Step]:
    """The training step and the evaluation step, as graphs.

    A step's loss is the sum over the examples of all ranks, divided by their number, which is reduced along with the
    gradients: padding has weight 0, so a step of n ranks is the step of one rank fed the concatenation of their
    batches, whatever was skipped. What a step changes in batch norm's running statistics is reduced, too, each rank's
    by its number of examples: after each step all ranks have the same model, and what it did not change is as it was.
    Without autograph: nothing here needs it, and it leaves files in $TMPDIR.
    """
    recipe, deterministic = settings.recipe, settings.deterministic
    compute = gradients_of(model, recipe, optimizer.scale_loss)
    statistics = running_statistics(model) if replicas.size > 1 else []
    draws = RandomDraws(model, recipe.seed, replicas.rank)

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
        full, *changes = replicas.average([own, *changes])
        gradients = replicas.average_gradients(gradients, half=recipe.compression == FP16)
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

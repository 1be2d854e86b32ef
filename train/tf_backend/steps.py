"""The training step and the evaluation step as graphs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from train.config.recipe import FP16
from train.config.settings import Settings
from train.tf_backend.gradients import gradients_of, moment_after, sums_of
from train.tf_backend.optimizer import apply_finite
from train.tf_backend.state import RandomDraws, running_statistics

NO_NUMBERS = (0.0,) * 4  # of the step before the first

Step = Callable[..., Any]


class Replicas(ABC):
    """The copies of the model that one step trains, ``size`` in all, and how they reduce what each has computed.

    ``rank`` counts the first copy of this process, which has ``local`` of them: one, unless a subclass changes it and
    the methods that divide a batch. What `run` returns goes to the other methods as it is.
    """

    rank: int
    size: int
    local: int = 1

    def scope(self) -> AbstractContextManager[Any]:
        """Where variables are made that every copy is to have."""
        return nullcontext()

    def split(self, columns: Sequence[tf.Tensor], in_turn: bool = False) -> Sequence[Any]:
        """The columns of a batch of this process, divided among its copies: in their order, as predictions come back;
        or ``in_turn``, one example to each copy, so that padding, which comes last, is divided evenly, too.
        """
        del in_turn
        return columns

    def run(self, function: Callable[..., Any], columns: Sequence[Any]) -> Any:
        """In a graph, what ``function`` of these columns returns on each copy of this process."""
        return function(*columns)

    def local_values(self, value: Any) -> Sequence[tf.Tensor]:
        """In a graph, each copy's value of this process."""
        return [value]

    @abstractmethod
    def average(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
        """In a graph, the mean over all copies of each tensor, all reduced together."""

    @abstractmethod
    def average_gradients(self, gradients: Sequence[Any], half: bool = False) -> list[tf.Tensor]:
        """Likewise of each gradient, reduced as soon as it is computed; with ``half`` as float16."""

    @abstractmethod
    def sum_in_graph(self, tensor: tf.Tensor) -> tf.Tensor:
        """On a copy, the sum over all copies, differentiable: its gradient is that of all copies' results."""

    @abstractmethod
    def broadcast(self, variables: Sequence[Any], root: int) -> None:
        """Give every process the values that process ``root`` has for these Keras variables."""


def compile_train_step(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, replicas: Replicas, settings: Settings
) -> Step:
    """The training step as a graph.

    A step's loss is the sum over the examples of all copies, divided by their number, which is reduced along with the
    gradients: padding has weight 0, so a step of n copies is the step of one that is fed the concatenation of their
    batches, whatever was skipped. What a step changes in batch norm's running statistics is reduced, too, each copy's
    by its number of examples: after each step all copies are the same, and what it did not change is as it was.
    Without autograph: nothing here needs it, and it leaves files in $TMPDIR.
    """
    recipe, deterministic = settings.recipe, settings.deterministic
    compute = gradients_of(model, recipe, optimizer.scale_loss)
    statistics = running_statistics(model) if replicas.size > 1 else []
    draws = RandomDraws(model, recipe.seed, replicas.rank)

    def on_copy(pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[Any, ...]:
        """This copy's gradients, what is averaged beside them, its `Sums`, and the moments around computing."""
        olds = [tf.identity(each.value) for each in statistics]
        begun = moment_after([weights], deterministic)
        with tf.control_dependencies([begun]):
            gradients, sums = compute(pixels, labels, weights)
        computed = moment_after(gradients, deterministic)
        own = sums[2] / recipe.examples_per_step
        pairs = [(each.value, old) for each, old in zip(statistics, olds, strict=True)]
        changes = [tf.where(each == old, 0.0, tf.cast(each - old, own.dtype)) for each, old in pairs]  # not inf - inf
        changes = [tf.math.multiply_no_nan(each, own) for each in changes]  # 0 of a copy that has but padding
        return gradients, [own, *changes], sums, [begun, computed]

    @tf.function(autograph=False)
    def train_step(*columns: tf.Tensor, step: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The numbers of this step, on the device; ``before``, those of the step before, on the host; and, on the host,
        the moments before and after computing, and after reducing (float64 seconds).

        Numbers are float32 of shape (4,): this rank's `Sums`, and, equal on all ranks, 1 if the step was not taken
        because its gradient is not finite.
        """
        with tf.device("/CPU:0"):
            before = tf.identity(before)
        draws.begin(step)
        olds = [tf.identity(each.value) for each in statistics]
        gradients, shares, sums, moments = replicas.run(on_copy, columns)
        full, *changes = replicas.average(shares)
        gradients = replicas.average_gradients(gradients, half=recipe.compression == FP16)
        reduced = moment_after(gradients, deterministic)
        for variable, old, change in zip(statistics, olds, changes, strict=True):
            variable.assign(old + tf.cast(tf.math.divide_no_nan(change, full), old.dtype))
        gradients = [tf.math.divide_no_nan(each, tf.cast(full, each.dtype)) for each in gradients]
        skips = apply_finite(optimizer, gradients, recipe)
        with tf.device("/CPU:0"):
            begun, computed = (replicas.local_values(each)[0] for each in moments)
            moments = tf.stack([begun, computed, reduced])
        return tf.stack([*(_sum(replicas.local_values(each)) for each in sums), skips]), before, moments

    return train_step


def compile_evaluate_step(model: keras.Model, replicas: Replicas) -> Step:
    """The evaluation step as a graph."""

    def on_copy(pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        logits = model(pixels, training=False)
        return sums_of(logits, labels, weights), tf.argmax(logits, axis=-1)

    @tf.function(autograph=False)
    def evaluate_step(*columns: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """This rank's `Sums`, and the predicted class of each example."""
        sums, predicted = replicas.run(on_copy, columns)
        return [_sum(replicas.local_values(each)) for each in sums], tf.concat(replicas.local_values(predicted), 0)

    return evaluate_step


def _sum(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return values[0] if len(values) == 1 else tf.add_n(values)

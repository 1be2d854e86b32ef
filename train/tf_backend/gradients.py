"""From a batch to gradients: the loss, label smoothing, accumulation over parts of a step, XLA."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from train.config.recipe import SYNCHRONISED, Recipe
from train.tf_backend.batch_norm import count_if

Sums = list[tf.Tensor]  # of losses, of hits and of examples; float32 scalars
Gradients = list[tf.Tensor]
GradientsOf = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[Gradients, Sums]]


def sums_of(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, smoothing: float = 0.0) -> Sums:
    """Sums over a batch of the losses, the hits and the examples, each example by its weight.

    ``logits`` are of shape (batch, classes), ``labels`` int64 and ``weights`` float32 of shape (batch,). ``smoothing``
    is what all classes share of an example's probability: Szegedy et al., "Rethinking the Inception Architecture",
    2015 (arXiv:1512.00567), section 7.
    """
    logits = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if smoothing:
        losses = (1 - smoothing) * losses - smoothing * tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    hits = tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), tf.float32)
    return [tf.reduce_sum(losses * weights), tf.reduce_sum(hits * weights), tf.reduce_sum(weights)]


def gradients_of(model: keras.Model, recipe: Recipe, scale: Callable[[tf.Tensor], tf.Tensor]) -> GradientsOf:
    """A function of the pixels, labels and weights of a step on one rank, to be called in a graph.

    It gives the gradient, by trainable variable, of the ``scale``d sum of the losses divided by the number of examples
    that a full step has; and the `Sums`. The step is taken in ``recipe.accumulate`` parts, one after the other. The
    model sees no padding: batch norm's statistics are those of the examples.
    """
    variables = [variable.value for variable in model.trainable_variables]

    def of_part(pixels: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tuple[Gradients, Sums]:
        with tf.GradientTape() as tape, count_if(tf.cast(tf.reduce_any(weights > 0), tf.float32)):
            sums = sums_of(model(pixels, training=True), labels, weights, recipe.label_smoothing)
            penalties = [tf.cast(each, tf.float32) for each in model.losses]  # of the user's model: its regularizers
            penalty = sum(penalties) * sums[2]
            loss = scale((sums[0] + penalty) / recipe.examples_per_step)
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(each) for each in gradients], sums

    if recipe.xla:
        of_part = tf.function(of_part, jit_compile=True, autograph=False)
    of_examples = of_part if recipe.accumulate == 1 else _in_parts(of_part, recipe, variables)

    def of_step(*columns: tf.Tensor) -> tuple[Gradients, Sums]:
        with tf.device("/CPU:0"):  # where the weights are: a GPU, asked how many there are, would have to be waited for
            wanted = columns[2] > 0  # without examples, one of weight 0
            wanted = wanted | ((tf.range(tf.size(wanted)) == 0) & ~tf.reduce_any(wanted))
            places = tf.where(wanted)[:, 0]
        return of_examples(*(tf.gather(column, places) for column in columns))

    return of_step


def _in_parts(of_part: GradientsOf, recipe: Recipe, variables: Sequence[Any]) -> GradientsOf:
    """Likewise, in parts of nearly equal size, one after the other: the memory of one, the gradients of all.

    An empty part is passed over; if batch norm's statistics are reduced over the ranks, which would wait, it is one
    example of weight 0.
    """

    def take_part(columns: Sequence[tf.Tensor], start: tf.Tensor, stop: tf.Tensor) -> tuple[Gradients, Sums]:
        if recipe.batch_norm != SYNCHRONISED:
            part = [column[start:stop] for column in columns]
            return tf.cond(stop > start, lambda: of_part(*part), no_part)
        pixels, labels, weights = (column[start : tf.maximum(stop, start + 1)] for column in columns)
        return of_part(pixels, labels, weights * tf.cast(stop > start, weights.dtype))

    def no_part() -> tuple[Gradients, Sums]:
        return [tf.zeros(each.shape, each.dtype) for each in variables], [tf.zeros(()) for _ in range(3)]

    def of_step(*columns: tf.Tensor) -> tuple[Gradients, Sums]:
        examples = tf.size(columns[2])

        def add_part(number: tf.Tensor, gradients: Gradients, sums: Sums) -> tuple[tf.Tensor, Gradients, Sums]:
            start, stop = (examples * each // recipe.accumulate for each in (number, number + 1))
            own_gradients, own_sums = take_part(columns, start, stop)
            return number + 1, added(gradients, own_gradients), added(sums, own_sums)

        _, gradients, sums = tf.while_loop(
            lambda number, *_: number < recipe.accumulate, add_part, (0, *no_part()), parallel_iterations=1
        )
        return gradients, sums

    return of_step


def added(some: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The sum of each two arrays or tensors of the same place, as two parts of a step have computed them."""
    return [one + other for one, other in zip(some, others, strict=True)]


def moment_after(tensors: Sequence[tf.Tensor], deterministic: bool) -> tf.Tensor:
    """The time, in seconds, at which these are computed; for a GPU's a copy is waited for of a number that follows.

    TensorFlow refuses its own op for the time if it is to be ``deterministic``.
    """
    with tf.control_dependencies(tensors):
        follower = tf.reshape(tensors[-1], [-1])[:1]
    with tf.device("/CPU:0"):
        if deterministic:
            return tf.numpy_function(lambda _: time.time(), [follower], tf.float64)
        with tf.control_dependencies([tf.identity(follower)]):
            return tf.timestamp()

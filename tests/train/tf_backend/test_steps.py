"""A step of several ranks is the step of one that is fed their batches; its results come one step later, each once."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.lib.ranks.threads import ThreadRank, on_ranks
from train.config.recipe import LOCAL, SYNCHRONISED, Recipe
from train.config.settings import Settings
from train.tf_backend.batch_norm import synchronised
from train.tf_backend.feed import PixelBatch
from train.tf_backend.optimizer import make_optimizer
from train.tf_backend.steps import compile_train_step
from train.tf_backend.trainer import Stepper

FEATURES, CLASSES = 5, 3
RATE = 0.5
ALL = np.arange(12)  # the numbers of the examples
RANDOM = np.random.default_rng(3)
INPUTS = RANDOM.normal(size=(len(ALL), FEATURES)).astype(np.float32)
LABELS = RANDOM.integers(0, CLASSES, len(ALL))

Array = npt.NDArray[Any]
Results = tuple[list[Array], list[float]]


@pytest.fixture(autouse=True)
def eagerly() -> Iterator[None]:
    """Ranks that are threads exchange values, not parts of graphs."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def model() -> keras.Model:
    dense = keras.layers.Dense(CLASSES)
    made = keras.Sequential([keras.Input((FEATURES,)), dense])
    dense.set_weights([np.sin(np.arange(FEATURES * CLASSES)).reshape(FEATURES, CLASSES), np.zeros(CLASSES)])
    return made


def take_step(
    strategy: ThreadRank, examples: Array, weights: Array, make: Callable[[], keras.Model] = model, **options: Any
) -> Results:
    """Weights after a step of these examples of all ranks, and this rank's sums."""
    batch = len(examples) // strategy.size
    own = slice(strategy.rank * batch, (strategy.rank + 1) * batch)
    recipe = Recipe(batch=batch // options.get("accumulate", 1), momentum=0.9, weight_decay=0.0, **options)
    made = make()
    if recipe.batch_norm == SYNCHRONISED:
        made = synchronised(made, strategy.sum_in_graph)
    optimizer = make_optimizer(recipe, made.trainable_variables)
    optimizer.learning_rate = RATE
    train_step = compile_train_step(made, optimizer, strategy, Settings(data="", recipe=recipe))
    result = (tf.constant(each[own]) for each in (INPUTS[examples], LABELS[examples], weights))
    earlier = tf.constant([1.0, 2.0, 3.0, 0.0])
    numbers, before, moments = train_step(*result, step=tf.constant(0), before=earlier)
    assert np.array_equal(before, earlier) and (np.diff(moments) >= 0).all()
    *sums, skips = numbers.numpy().tolist()
    assert skips == 0
    return [each.numpy() for each in made.variables], sums


@pytest.mark.parametrize("padding", [[], [8, 9, 10, 11], [3, 7, 9, 10, 11]])
def test_ranks_take_the_step_of_one_that_has_no_repeats(padding: list[int]) -> None:
    real, weights = np.delete(ALL, padding), np.ones(len(ALL), np.float32)
    weights[padding] = 0
    ((whole, sums),) = on_ranks(1, lambda strategy: take_step(strategy, real, weights[real]))
    ranks = on_ranks(3, lambda strategy: take_step(strategy, ALL, weights))
    for own, _ in ranks:
        for ours, theirs, first in zip(own, whole, ranks[0][0], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
            assert np.array_equal(ours, first)
    assert np.sum([own for _, own in ranks], axis=0) == pytest.approx(sums, rel=1e-5)
    assert sums[2] == len(real)
    assert not np.allclose(whole[0], model().get_weights()[0])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_layers_of_another_type_are_trained_too(dtype: str) -> None:
    def make() -> keras.Model:
        inner = [keras.layers.Dense(CLASSES, dtype=dtype), keras.layers.BatchNormalization(dtype=dtype)]
        return keras.Sequential([keras.Input((FEATURES,)), *inner, keras.layers.Dense(CLASSES)])

    weights = np.ones(len(ALL), np.float32)
    ((own, _),) = on_ranks(1, lambda strategy: take_step(strategy, ALL, weights, make=make))
    assert str(own[0].dtype) == dtype
    assert all(np.isfinite(each.astype(float)).all() for each in own)


def with_statistics() -> keras.Model:
    """A model with batch norm, behind a layer whose statistics no step changes."""
    adapted = keras.layers.Normalization()
    adapted.adapt(INPUTS)
    return keras.Sequential([keras.Input((FEATURES,)), adapted, keras.layers.BatchNormalization(), *model().layers])


def on_three(weights: Array, **options: Any) -> list[Results]:
    """What three ranks have after a step of this model."""
    return on_ranks(3, lambda strategy: take_step(strategy, ALL, weights, make=with_statistics, **options))


@pytest.mark.parametrize("batch_norm", [LOCAL, SYNCHRONISED])
def test_a_step_changes_only_what_it_may(batch_norm: str) -> None:
    """Of padding alone, which is another example on each rank, nothing; of examples, not a bit of the statistics of the
    layer that no step changes; and all ranks have the same bits.
    """
    before, weights = with_statistics().get_weights(), np.ones(len(ALL), np.float32)
    for own, sums in on_three(0 * weights, batch_norm=batch_norm):
        assert sums == [0, 0, 0]
        for ours, first in zip(own, before, strict=True):
            np.testing.assert_allclose(ours, first, rtol=1e-6)
    weights[[3, 10, 11]] = 0
    ranks = on_three(weights, batch_norm=batch_norm)
    for own, _ in ranks:
        assert all(map(np.array_equal, own, ranks[0][0]))
        assert all(map(np.array_equal, own[:2], before[:2]))
        assert not np.array_equal(own[5], before[5])


def test_a_part_without_examples_on_any_rank_leaves_synchronised_statistics_finite() -> None:
    """Three ranks of 3 examples each take a step in 4 parts."""
    weights = np.ones(len(ALL), np.float32)
    weights[[3, 7, 11]] = 0
    for own, _ in on_three(weights, batch_norm=SYNCHRONISED, accumulate=4):
        assert all(np.isfinite(each).all() for each in own)


def test_results_are_those_of_the_step_before_and_each_is_given_once() -> None:
    """A step's losses, hits and examples are those of its labels; one is skipped."""

    def take(pixels: Any, labels: Any, weights: Any, *, step: Any, before: Any) -> Any:
        sums = [float(step), float(labels[0]), float(tf.reduce_sum(weights))]
        numbers = tf.constant([*sums, float(int(step) == 2)])
        return numbers, tf.identity(before), tf.constant([10.0, 11.0, 13.0], tf.float64)

    def batches() -> Iterator[PixelBatch]:
        for number in range(4):
            weights, keys = tf.constant([1.0, 0.0]), tf.constant([f"key {number}", "padding"])
            yield PixelBatch(tf.zeros((2, 1, 1, 1)), tf.constant([number, 0]), weights, keys)

    stepper = Stepper(take, SimpleNamespace(learning_rate=0.0), has_keys=True)
    outcome = [stepper.take(batch, step, 0.1 * step) for step, batch in enumerate(stepper.timed(batches()))]
    outcome.append(stepper.finish())
    assert [[each.measured.step for each in results] for results in outcome] == [[], [1], [2], [3], [4]]
    found = [result for results in outcome for result in results]
    assert [each.measured.sums for each in found] == [(n, n, 1) for n in range(4)]
    assert [each.measured.rate for each in found] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert [each.is_skipped for each in found] == [False, False, True, False]
    assert [(each.measured.compute_s, each.measured.reduce_s) for each in found] == [(1.0, 2.0)] * 4
    assert [each.keys for each in found] == [[f"key {n}".encode()] for n in range(4)]
    assert not stepper.finish()

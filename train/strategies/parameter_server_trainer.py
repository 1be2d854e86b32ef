"""The trainer of parameter servers: the chief divides the records of a step among the workers.

The part of a worker is a closure of TensorFlow's coordinator, which runs it again elsewhere if its worker is lost. A
worker decodes, augments and computes gradients in its graph. Synchronously the chief adds the gradients up and applies
them once; asynchronously each worker applies its own to the servers' variables.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from etl.errors import UsageError
from etl.slices.manifest import Manifest
from train.config.augmentation import Augmentation
from train.config.settings import Settings
from train.parallel.trainer import StepOfRank, StepResult
from train.reader.batches import RecordBatch
from train.reader.intervals import run_of
from train.runs.metrics import now
from train.strategies.mirrored import MirroredReplicas
from train.tf_backend.decode import Decoder
from train.tf_backend.feed import Feed
from train.tf_backend.gradients import added, gradients_of
from train.tf_backend.state import RandomDraws, running_statistics
from train.tf_backend.trainer import TrainedModel

LOST_ERRORS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
OF_ANOTHER_START = ("unknown device", "Primary device is not remote", "Unable to find the relevant tensor")  # of errors
Part = tuple[tf.Tensor, ...]  # records, their numbers and weights, and the seed of the epoch
SIGNATURE = [  # of a part and the number of its random draws: parts of other sizes are not traced again
    tf.TensorSpec([None], tf.string),
    tf.TensorSpec([None], tf.int64),
    tf.TensorSpec([None], tf.float32),
    tf.TensorSpec([], tf.int64),
    tf.TensorSpec([], tf.int64),
]


class WorkerPool(MirroredReplicas):
    """The copies of the model on the workers. The chief evaluates: it has one, which takes the batches of all."""

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, workers: int) -> None:
        super().__init__(strategy)
        self.size = self.local = workers

    def split(self, columns: Sequence[tf.Tensor], in_turn: bool = False) -> Sequence[tf.Tensor]:
        """As they are: the chief evaluates whole batches."""
        del in_turn
        return columns


class PureModel:
    """A Keras model that changes none of its variables: after a call, ``changes`` are what batch norm would add to its
    running ``statistics``. So a closure can be run again, and workers do not see each other's.

    Raises UsageError if a layer changes another variable, as one that counts steps.
    """

    def __init__(self, model: keras.Model, seed: int) -> None:
        self._model = model
        self._draws = RandomDraws(model, seed, rank=0)
        self.trainable_variables = model.trainable_variables
        self.statistics = running_statistics(model)
        self.draw: Any = 0  # which random draws a call takes
        self.changes: list[tf.Tensor] = []
        self.losses: list[tf.Tensor] = []

    def __call__(self, pixels: tf.Tensor, training: bool) -> tf.Tensor:
        values = [(each, tf.convert_to_tensor(each.value)) for each in self._model.variables]
        olds = {id(each): value for each, value in values}
        with keras.StatelessScope(values, collect_losses=True) as scope:
            self._draws.begin(self.draw)
            logits = self._model(pixels, training=training)
            self.losses = self._model.losses
        self.changes = [scope.get_current_value(each) - olds[id(each)] for each in self.statistics]
        expected = {id(each) for each in (*self.statistics, *self._draws.states)}
        for each, old in values:
            if id(each) not in expected and scope.get_current_value(each) is not old:
                raise UsageError(
                    f"--model: a layer changes {each.path} ({each.dtype}) in training, and parameter servers only"
                    " support changes of floating-point statistics. Use --strategy mirrored or horovod"
                )
        return logits


class ParameterServerTrainer(TrainedModel):
    """The `Trainer` of the chief. Variables are on the servers; batches are evaluated here."""

    def __init__(self, settings: Settings, manifest: Manifest, strategy: Any, workers: int) -> None:
        self._strategy = strategy
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        super().__init__(settings, manifest, WorkerPool(strategy, workers))
        recipe = settings.recipe
        self._is_synchronous = settings.is_synchronous
        self._workers, self._accumulate = workers, recipe.accumulate
        self._feed = Feed(recipe.examples_per_step * workers, lambda dataset: dataset)
        augmentation = Augmentation.of(recipe.augmentations, recipe.crop_area)
        decoder = Decoder(manifest, settings.picture_size(manifest), augmentation)
        pure = PureModel(self.model, recipe.seed)
        compute = compute_part(pure, decoder, settings)
        part = compute if self._is_synchronous else update_part(compute, self.optimizer, pure.statistics, workers)
        self._part = tf.function(
            lambda *columns: self._strategy.run(part, args=columns), autograph=False, input_signature=SIGNATURE
        )
        self._apply = compile_apply(self._strategy, self.optimizer, pure.statistics)
        self._pending: deque[_StepInFlight] = deque()
        self._updates = 0
        self._input_s, self._over = 0.0, time.perf_counter()

    @property
    def _parts(self) -> int:
        """Parts of a step."""
        return self._workers * self._accumulate

    def train_batches(self, records: Iterator[RecordBatch], seed: int) -> Generator[list[Part], None, None]:
        """The parts of each batch of ``records``."""
        self._over = asked = time.perf_counter()
        with closing(self._feed.epoch(records, seed)) as batches:
            for batch in batches:
                parts = divide(batch, self._workers, self._accumulate)
                self._input_s = time.perf_counter() - asked
                yield parts
                asked = time.perf_counter()

    def train_step(self, batch: list[Part], step: int, learning_rate: float) -> list[StepResult]:
        """Schedule a step. Asynchronously wait for the last but one, so that two are in flight; else for this one."""
        results = self._collect(1)
        if not self._pending:
            self._updates = int(self.optimizer.iterations.numpy())
        self.optimizer.learning_rate = learning_rate / (1 if self._is_synchronous else self._parts)
        begun = time.perf_counter()
        draws = (tf.constant(step * self._parts + number, tf.int64) for number in range(len(batch)))
        parts = [(*part, draw) for part, draw in zip(batch, draws, strict=True)]
        futures = [self._coordinator.schedule(self._part, args=each) for each in parts]
        self._updates += len(parts)
        self._pending.append(_StepInFlight(step + 1, learning_rate, self._input_s, begun, parts, futures))
        return self._collect(0) if self._is_synchronous else results

    def finish_steps(self) -> list[StepResult]:
        """Wait for all steps in flight; their results."""
        results = self._collect(0)
        if results and not self._is_synchronous:
            self.optimizer.iterations.assign(self._updates)  # workers that add to it at once lose counts
        return results

    def _fetch(self, part: Part, future: Any) -> Sequence[Any]:
        """What a worker has computed of a part. If it was lost before the chief has that, another one computes it."""
        while True:
            try:
                return future.fetch()
            except tf.errors.OpError as error:
                if not is_worker_lost(error):
                    if isinstance(error, tf.errors.CancelledError):  # by TensorFlow, after the error of another part
                        self._coordinator.join()
                    raise
                future = self._coordinator.schedule(self._part, args=part)

    def _collect(self, left: int) -> list[StepResult]:
        """Wait for steps until so many are ``left``; their results."""
        results = []
        while len(self._pending) > left:
            taken = self._pending.popleft()
            sums, totals = np.zeros(3), None
            keys: list[bytes] = []
            for part, future in zip(taken.parts, taken.futures, strict=True):
                *numbers, own_sums, own_keys = self._fetch(part, future)
                sums, keys = sums + own_sums, [*keys, *own_keys.tolist()]
                totals = numbers if totals is None else added(totals, numbers)
            computed = time.perf_counter()
            if totals:
                self._apply(*(tf.constant(each) for each in totals))
            last, self._over = self._over, time.perf_counter()
            begun = max(taken.begun, last)  # the step before may have ended later than this one began
            seconds = taken.input_s, computed - begun, self._over - computed, self._over - last
            measured = StepOfRank.of(taken.step, taken.rate, sums.tolist(), seconds, now())
            results.append(StepResult(measured, False, keys))
        return results


@dataclass(frozen=True)
class _StepInFlight:
    """A step whose ``parts``, with the numbers of their draws, are in flight; what was measured of it before."""

    step: int
    rate: float
    input_s: float
    begun: float
    parts: Sequence[Part]
    futures: Sequence[Any]


def is_worker_lost(error: tf.errors.OpError) -> bool:
    """True if ``error`` is that of a worker which has ended, or was started again.

    TensorFlow's coordinator decides so (`_is_worker_failure` in cluster_coordinator.py), but only until a worker has
    computed its part: what it returns is still there.
    """
    text = str(error)
    if "/job:worker" not in text or "remote target /job:ps" in text:
        return False
    return isinstance(error, LOST_ERRORS) or any(each in text for each in OF_ANOTHER_START)


def divide(batch: Sequence[tf.Tensor], workers: int, accumulate: int) -> list[Part]:
    """The examples of a batch, without padding: each of the ``workers`` has every so many-th, as a copy of the model of
    `mirrored`, in ``accumulate`` parts. None of a part without examples.

    If all is padding, one record of weight 0: a step has at least one part.
    """
    *columns, seed = batch
    examples = np.flatnonzero(columns[-1].numpy() > 0)
    of_workers = [examples[worker::workers] for worker in range(workers)]
    places = [own[slice(*run_of(len(own), part, accumulate))] for own in of_workers for part in range(accumulate)]
    wanted = [each for each in places if len(each)] or [np.zeros(1, np.int64)]
    return [(*(tf.gather(column, each) for column in columns), seed) for each in wanted]


def compute_part(model: PureModel, decoder: Decoder, settings: Settings) -> Callable[..., list[tf.Tensor]]:
    """A function of a part and the number of its draws, to be called in a graph.

    It gives the gradient of the sum of the losses divided by --batch, by variable; the part's examples as a fraction
    of --batch; the changes of batch norm's statistics times that; then the part's `Sums` as one tensor, and its keys.
    """
    recipe = replace(settings.recipe, accumulate=1)
    compute = gradients_of(model, recipe, lambda loss: loss)
    pixels_spec = tf.TensorSpec((*decoder.size, decoder.manifest.channels), tf.uint8)

    def of_part(*columns: tf.Tensor) -> list[tf.Tensor]:
        *part, model.draw = columns
        encoded, seeds, labels, weights, keys = decoder.parse(*part)
        pixels = tf.map_fn(lambda each: decoder.pixels(*each), (encoded, seeds), fn_output_signature=pixels_spec)
        gradients, sums = compute(pixels, labels, weights)
        own = sums[2] / recipe.examples_per_step
        changes = [tf.cast(each, tf.float32) * own for each in model.changes]
        return [*gradients, own, *changes, tf.stack(sums), keys if settings.audit else keys[:0]]

    return of_part


def compile_apply(strategy: Any, optimizer: Any, statistics: Sequence[Any]) -> Callable[..., None]:
    """A function of the sums of what the parts of a step have computed: one step of the weights, as `tf.function`.

    Within `Strategy.run`, and on tensors of its own graph: else the optimizer finds no replica to update.
    """

    def apply(*totals: tf.Tensor) -> None:
        end = len(totals) - len(statistics)
        *gradients, full = (tf.identity(each) for each in totals[:end])
        optimizer.apply([tf.math.divide_no_nan(each, tf.cast(full, each.dtype)) for each in gradients])
        add_changes(statistics, totals[end:], full)

    return tf.function(lambda *totals: strategy.run(apply, args=totals), autograph=False)


def update_part(
    compute: Callable[..., list[tf.Tensor]], optimizer: Any, statistics: Sequence[Any], workers: int
) -> Callable[..., list[tf.Tensor]]:
    """A function that applies what ``compute`` gives at once; it gives the part's sums and keys.

    Of the change of batch norm's statistics it adds each worker's share: they were read before others changed them, and
    the full change of each of many workers would lead beyond what it leads to.
    """

    def of_part(*columns: tf.Tensor) -> list[tf.Tensor]:
        *totals, sums, keys = compute(*columns)
        end = len(totals) - len(statistics)
        *gradients, own = totals[:end]
        with tf.control_dependencies(gradients):  # else what is read is as old as the part: a server reads at once
            optimizer.apply(gradients)
        add_changes(statistics, totals[end:], own * workers)
        return [sums, keys]

    return of_part


def add_changes(statistics: Sequence[Any], changes: Sequence[tf.Tensor], examples: tf.Tensor) -> None:
    """Add to each of batch norm's statistics its change, which was computed times ``examples``.

    By TensorFlow's variables: `assign_add` of Keras' sets what it has read and added to.
    """
    for variable, change in zip(statistics, changes, strict=True):
        variable.value.assign_add(tf.cast(tf.math.divide_no_nan(change, examples), variable.dtype))

"""TensorFlow's trainer: a model and its optimizer, and steps with them; the results of a step are read one step later.

To read a number from a GPU waits for all that the GPU has to do. So the numbers of a step are given to the next step,
which copies them to the host while it computes.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from etl.slices.manifest import Manifest
from train.checkpoints.safetensors_file import Arrays
from train.config.augmentation import NOTHING, Augmentation
from train.config.recipe import BFLOAT16, FLOAT16, FLOAT32, SYNCHRONISED
from train.config.settings import Settings
from train.parallel.trainer import StepOfRank, StepResult, digests_of, require_same
from train.reader.batches import RecordBatch
from train.runs.metrics import now
from train.tf_backend.batch_norm import synchronised
from train.tf_backend.builders import build
from train.tf_backend.decode import Decoder
from train.tf_backend.feed import PixelBatch, PixelBatches, PixelFeed
from train.tf_backend.optimizer import make_optimizer
from train.tf_backend.records_op import why_not_native
from train.tf_backend.steps import NO_NUMBERS, Replicas, compile_evaluate_step, compile_train_step

POLICIES = {FLOAT32: "float32", FLOAT16: "mixed_float16", BFLOAT16: "mixed_bfloat16"}


class TrainedModel:
    """The part of a `Trainer` that is the same however steps are taken: the model of a recipe at its first weights and
    its optimizer, their state, and evaluation.
    """

    is_divided = False

    def __init__(self, settings: Settings, manifest: Manifest, replicas: Replicas) -> None:
        recipe = settings.recipe
        if settings.deterministic:
            tf.config.experimental.enable_op_determinism()
        keras.utils.clear_session()  # so that layers are called the same on a rank that has been in another ring before
        keras.utils.set_random_seed(recipe.seed)
        shape = (*settings.picture_size(manifest), manifest.channels)
        keras.config.set_dtype_policy(POLICIES[recipe.precision])
        with replicas.scope():
            model = build(recipe.model, shape, len(manifest.classes), manifest.mean, manifest.std)
            if recipe.batch_norm == SYNCHRONISED:
                model = synchronised(model, replicas.sum_in_graph)
            self.model = model
            self.optimizer = make_optimizer(recipe, model.trainable_variables)
        self._replicas = replicas
        self._plain = pixel_feed(settings, manifest, recipe.rank_batch, copies=replicas.local)
        self._evaluate_step = compile_evaluate_step(model, replicas)

    def evaluation_batches(self, records: Iterator[RecordBatch]) -> PixelBatches:
        return self._plain.epoch(records)

    def evaluate_step(self, batch: PixelBatch) -> tuple[list[float], np.ndarray]:
        sums, predicted = self._evaluate_step(*self._replicas.split([batch.pixels, batch.labels, batch.weights]))
        return [float(each) for each in sums], predicted.numpy()

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.learning_rate.numpy())

    @property
    def parameters(self) -> int:
        return int(self.model.count_params())

    @property
    def notes(self) -> list[str]:
        reason = why_not_native()
        return [f"the reader's native op is {reason}, so examples take more time; run: make install"] if reason else []

    @property
    def _groups(self) -> Mapping[str, Sequence[Any]]:
        """All that a checkpoint contains; each group is a file of it."""
        return {"model": self.model.weights, "optimizer": self.optimizer.variables}

    @property
    def _variables(self) -> list[Any]:
        return [each for group in self._groups.values() for each in group]

    def state(self) -> dict[str, Arrays]:
        return {
            group: {_name(number, each): each.numpy() for number, each in enumerate(variables)}
            for group, variables in self._groups.items()
        }

    def load_state(self, state: Mapping[str, Arrays], source: str) -> None:
        for group, arrays in state.items():
            ours = {_name(number, each): _kind(each) for number, each in enumerate(self._groups[group])}
            require_same(source, group, {name: _kind(each) for name, each in arrays.items()}, ours)
        for group, arrays in state.items():
            for number, each in enumerate(self._groups[group]):
                each.assign(arrays[_name(number, each)])

    def broadcast_state(self, root: int = 0) -> None:
        self._replicas.broadcast(self._variables, root)

    def digests(self) -> list[tuple[str, str]]:
        return digests_of((each.path, each.numpy()) for each in self._variables)

    def first_not_finite(self) -> str:
        floating = [each for each in self._variables if tf.as_dtype(each.dtype).is_floating]
        checks = [tf.reduce_all(tf.math.is_finite(each.value)) for each in floating]
        results = zip(floating, tf.stack(checks).numpy() if checks else (), strict=True)
        return next((str(variable.path) for variable, is_finite in results if not is_finite), "")


def _name(number: int, variable: Any) -> str:
    return f"{number:04d}-{variable.name}"  # not its path, which counts the models that a process made before


def _kind(values: Any) -> str:
    """The dtype and the shape of a variable or an array."""
    return f"{values.dtype} of shape {tuple(values.shape)}"


class KerasTrainer(TrainedModel):
    """The `Trainer` of TensorFlow in whose steps all processes take part."""

    def __init__(self, settings: Settings, manifest: Manifest, replicas: Replicas) -> None:
        super().__init__(settings, manifest, replicas)
        recipe = settings.recipe
        augmentation = Augmentation.of(recipe.augmentations, recipe.crop_area)
        self._augmented = pixel_feed(settings, manifest, recipe.examples_per_step, augmentation, copies=replicas.local)
        train_step = compile_train_step(self.model, self.optimizer, replicas, settings)
        split = partial(replicas.split, in_turn=True)
        self.stepper = Stepper(train_step, self.optimizer, has_keys=settings.audit, split=split)

    def train_batches(self, records: Iterator[RecordBatch], seed: int) -> PixelBatches:
        """A decoded batch for each of ``records``, augmented by ``seed``; each is timed as the input of its step."""
        with closing(self._augmented.epoch(records, seed)) as batches:
            yield from self.stepper.timed(batches)

    def train_step(self, batch: PixelBatch, step: int, learning_rate: float) -> list[StepResult]:
        return self.stepper.take(batch, step, learning_rate)

    def finish_steps(self) -> list[StepResult]:
        return self.stepper.finish()


def pixel_feed(
    settings: Settings, manifest: Manifest, batch: int, augmentation: Augmentation = NOTHING, *, copies: int
) -> PixelFeed:
    """What decodes batches of ``batch`` for each of the ``copies`` of the model ahead, on all cores that this process
    may use; a GPU gets them ahead, too, if it is the only one.
    """
    decoder = Decoder(manifest, settings.picture_size(manifest), augmentation)
    gpus = tf.config.list_logical_devices("GPU")
    device = gpus[0].name if gpus and copies == 1 else ""
    return PixelFeed(decoder, batch * copies, len(os.sched_getaffinity(0)), device)


@dataclass(frozen=True)
class _Taken:
    """A step whose numbers are not read yet: when it ended, and the ``seconds`` of input, computing, reducing, and
    the whole.
    """

    step: int
    rate: float
    time: str
    seconds: tuple[float, ...]
    keys: Any


class Stepper:
    """Takes steps with ``train_step`` of `compile_train_step`, and measures them.

    ``split`` divides the columns of a batch among the copies of the model; by default there is one.
    """

    def __init__(
        self, train_step: Callable[..., Any], optimizer: Any, has_keys: bool, split: Callable[[Any], Any] = tuple
    ) -> None:
        self.train_step, self._split = train_step, split
        self._optimizer, self._has_keys = optimizer, has_keys
        self._numbers = tf.constant(NO_NUMBERS)  # of the last step, on the device
        self._taken: _Taken | None = None
        self._input_s = 0.0
        self._over = time.perf_counter()  # when the last step was

    def timed(self, batches: Iterable[PixelBatch]) -> PixelBatches:
        """These batches; the time until one is there is the input of its step."""
        self._over = asked = time.perf_counter()
        for batch in batches:
            self._input_s = time.perf_counter() - asked
            yield batch
            asked = time.perf_counter()

    def take(self, batch: PixelBatch, steps: int, rate: float) -> list[StepResult]:
        """Take a step, after so many ``steps``; the result of the step before, if it is not known yet."""
        self._optimizer.learning_rate = rate
        inputs = {"step": tf.constant(steps), "before": self._numbers}
        columns = self._split([batch.pixels, batch.labels, batch.weights])
        self._numbers, before, moments = self.train_step(*columns, **inputs)
        begun, computed, reduced = moments.numpy().tolist()
        results = self._results(before)
        last_over, self._over = self._over, time.perf_counter()
        seconds = self._input_s, computed - begun, reduced - computed, self._over - last_over
        keys = batch.keys[batch.weights > 0] if self._has_keys else None
        self._taken = _Taken(steps + 1, rate, now(), seconds, keys)
        return results

    def finish(self) -> list[StepResult]:
        """Wait for the last step; its result, if it is not known yet."""
        return self._results(self._numbers)

    def _results(self, numbers: tf.Tensor) -> list[StepResult]:
        if self._taken is None:
            return []
        taken, self._taken = self._taken, None
        *sums, skips = numbers.numpy().tolist()
        measured = StepOfRank.of(taken.step, taken.rate, sums, taken.seconds, taken.time)
        keys: Sequence[bytes] = () if taken.keys is None else taken.keys.numpy().tolist()
        return [StepResult(measured, skips > 0, keys)]

"""Training steps as the trainer takes them on one rank, with its model, input and optimizer."""

from collections.abc import Iterator
from itertools import count, repeat
from typing import Any

from lib.ways.gpu import AUGMENTED, COMPILED, CPU, FLOAT32, SYNTHETIC, Job
from train.parallel.startup import prepare_import

SEED = 0


class TensorFlowSteps:
    """`lib.ways.gpu.Steps` of TensorFlow. Raises EnvironmentFailure if it has not the job's device."""

    def __init__(self, job: Job) -> None:
        with prepare_import():
            import keras
            import tensorflow as tf

            from etl.errors import EnvironmentFailure
            from lib.ways.our_reader import OurReader
            from train.config.recipe import Recipe
            from train.reader.config import ReaderOptions
            from train.tf_backend.builders import build
            from train.tf_backend.devices import take_device
            from train.tf_backend.gradients import gradients_of
            from train.tf_backend.optimizer import make_optimizer

        taken = take_device(job.device)
        if taken.lacks:
            raise EnvironmentFailure(taken.lacks)
        self._tf, self._job = tf, job
        self.device = taken.name or "CPU"
        self._reader = OurReader(job.slices, job.batch, ReaderOptions())
        manifest = self._reader.manifest
        keras.utils.set_random_seed(SEED)
        keras.config.set_dtype_policy("float32" if job.precision == FLOAT32 else "mixed_bfloat16")
        recipe = Recipe(model="resnet50", batch=job.batch, xla=job.precision == COMPILED)
        shape = (job.side, job.side, manifest.channels)
        model = build(recipe.model, shape, len(manifest.classes), manifest.mean, manifest.std)
        optimizer = make_optimizer(recipe, model.trainable_variables)
        compute = gradients_of(model, recipe, optimizer.scale_loss)

        @tf.function(autograph=False)
        def step(pixels: Any, labels: Any, weights: Any) -> Any:
            gradients, sums = compute(pixels, labels, weights)
            optimizer.apply(gradients)
            return sums[0]

        self._step = step

    def batches(self, source: str) -> Iterator[Any]:
        from train.config.augmentation import NOTHING, Augmentation
        from train.tf_backend.decode import Decoder

        wanted = Augmentation(crop=True, flip=True) if source == AUGMENTED else NOTHING
        decoder = Decoder(self._reader.manifest, (self._job.side, self._job.side), wanted)
        pictures = self._reader.pictures(count(), decoder)
        if source == SYNTHETIC:
            batch = next(pictures)
            return repeat((self._tf.identity(batch.pixels), batch.labels, batch.weights))
        return ((batch.pixels, batch.labels, batch.weights) for batch in pictures)

    def step(self, batch: Any) -> Any:
        return self._step(*batch)

    def wait(self, result: Any) -> None:
        float(result)

    def peak_bytes(self) -> int:
        if self._job.device == CPU:
            return 0
        return int(self._tf.config.experimental.get_memory_info("GPU:0")["peak"])


def make_steps(job: Job) -> TensorFlowSteps:
    """The steps of this job."""
    return TensorFlowSteps(job)

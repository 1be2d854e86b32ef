"""Training steps of PyTorch as the trainer takes them on one rank, for a machine without TensorFlow."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, repeat
from typing import Any

import torch

from etl.errors import EnvironmentFailure
from etl.slices.manifest import Manifest, read_manifest
from etl.stages.layout import slices_stage_in
from etl.storage.place import open_place
from lib.ways.gpu import AUGMENTED, COMPILED, FLOAT32, SYNTHETIC, Job
from train.config.recipe import BFLOAT16, Recipe
from train.config.settings import Settings
from train.parallel.collective import SingleProcess
from train.reader.batches import RecordBatch
from train.reader.config import ReaderOptions
from train.reader.intervals import Steps
from train.reader.reader import SplitReader
from train.strategies.ddp import take_device
from train.torch_backend.replicas import DataParallel
from train.torch_backend.trainer import TorchTrainer

SPLIT, SEED, RATE = "train", 0, 0.1


class TorchSteps:
    """`lib.ways.gpu.Steps` of PyTorch. Raises EnvironmentFailure if it has not the job's device."""

    def __init__(self, job: Job) -> None:
        taken, self._place = take_device(job.device)
        if taken.lacks:
            raise EnvironmentFailure(taken.lacks)
        self.device, self._job = taken.name or "CPU", job
        folder = open_place(job.slices)
        manifest = Manifest.from_json(read_manifest(slices_stage_in(folder)))
        self._reader = SplitReader(folder, manifest, SPLIT, ReaderOptions())
        precision = FLOAT32 if job.precision == FLOAT32 else BFLOAT16
        recipe = Recipe(model="resnet50", batch=job.batch, precision=precision, augment="crop,flip", crop=job.side)
        settings = Settings(data=job.slices, recipe=recipe, strategy="ddp")
        self._trainer = TorchTrainer(settings, manifest, DataParallel(SingleProcess()), self._place)
        if job.precision == COMPILED:
            self._trainer.net.compile()
        self._steps = count()

    def batches(self, source: str) -> Iterator[Any]:
        trainer = self._trainer
        if source == AUGMENTED:
            return trainer.train_batches(self._records(), SEED)
        batches = trainer.evaluation_batches(self._records())
        if source != SYNTHETIC:
            return batches
        batch = next(batches)
        return repeat(replace(batch, pixels=batch.pixels.to(self._place)))

    def step(self, batch: Any) -> Any:
        self._trainer.train_step(batch, next(self._steps), RATE)
        if self._place.type == "cpu":
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def wait(self, result: Any) -> None:
        if result is not None:
            result.synchronize()

    def peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_allocated()) if self._place.type == "cuda" else 0

    def _records(self) -> Iterator[RecordBatch]:
        """Batches of serialized examples, epoch after epoch."""
        steps = Steps(self._reader.total, 1, self._job.batch, drop_last=True)
        for epoch in count():
            yield from self._reader.batches(self._reader.order(SEED, epoch), steps, 0)


def make_steps(job: Job) -> TorchSteps:
    """The steps of this job."""
    return TorchSteps(job)

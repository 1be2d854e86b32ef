"""The ways of `benchmarks/trainer.py` that are not the trainer itself."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice, repeat
from typing import Any

from train.parallel.startup import loading

SPLIT = "train"
SEED = 0
LOAD = 0.8  # the part of the rate of read-bench that the consumer takes


@dataclass(frozen=True)
class Job:
    """What a process does. ``slices`` is the URI of the manifest's folder.

    For ``fit``: ``epochs`` of ``model`` in batches of ``batch``, at the learning rate ``lr``, with Keras' ``jit``. For
    ``input``: the ``seconds`` of each measurement.
    """

    way: str
    slices: str
    model: str = ""
    batch: int = 0
    epochs: int = 0
    lr: float = 0.0
    jit: bool | str = False
    seconds: float = 0.0


def fit(job: Job) -> list[float]:
    """Keras' own `fit` on all training pictures in memory; images per second of each epoch."""
    import keras
    import numpy as np

    from lib.ways.our_reader import OurReader
    from train.input.decode import Decoder
    from train.model.builders import build
    from train.reader.config import Reading

    reader = OurReader(job.slices, job.batch, Reading(), drop_last=False)
    manifest = reader.manifest
    shape = (*manifest.size, manifest.channels)
    batches = list(reader.pictures([0], Decoder(manifest, manifest.size)))
    own = [batch.weights.numpy() > 0 for batch in batches]  # the others fill up the last batch
    pixels = np.concatenate([batch.pixels.numpy()[each] for batch, each in zip(batches, own, strict=True)])
    labels = np.concatenate([batch.labels.numpy()[each] for batch, each in zip(batches, own, strict=True)])
    del batches

    class Clock(keras.callbacks.Callback):
        """Images per second of each epoch, from its first step to its last."""

        def __init__(self) -> None:
            super().__init__()
            self.rates: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._began = time.monotonic()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.rates.append(len(pixels) / (time.monotonic() - self._began))

    keras.utils.set_random_seed(SEED)
    model = build(job.model, shape, len(manifest.classes), manifest.mean, manifest.std)
    model.compile(
        keras.optimizers.SGD(job.lr, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        run_eagerly=False,
        jit_compile=job.jit,
    )
    clock = Clock()
    model.fit(pixels, labels, job.batch, job.epochs, verbose=0, callbacks=[clock])
    return clock.rates


def feed(job: Job) -> dict[str, float]:
    """Images per second that `ringslice read-bench` measures, and those of a consumer that takes most of them.

    The consumer waits for a fixed time at each batch, as for a busy accelerator: ``real`` with pictures from the
    slices, ``synthetic`` with one batch in memory, repeated.
    """
    from lib.ways.our_reader import OurReader
    from train.input.decode import Decoder
    from train.input.throughput import BATCH, DECODED, Throughput
    from train.reader.config import Reading

    reading = Reading()
    reader = OurReader(job.slices, BATCH, reading)
    manifest = reader.manifest
    measured = Throughput(reader.place, manifest, SPLIT, job.seconds).measure(DECODED, reading.lanes)
    rate = measured.records_per_s
    assert rate
    step_s = BATCH / (LOAD * rate)
    steps = max(2, round(job.seconds / step_s))
    pictures = reader.pictures(count(), Decoder(manifest, manifest.size))
    synthetic = consume(repeat(next(pictures)), steps, step_s)
    real = consume(pictures, steps, step_s)
    return {"real": BATCH / real, "synthetic": BATCH / synthetic, "read-bench": rate}


def consume(batches: Iterable[Any], steps: int, step_s: float) -> float:
    """Take so many batches and keep each for ``step_s``; the average seconds of a batch, including the wait for it."""
    began = time.perf_counter()
    for _ in islice(batches, steps):
        time.sleep(step_s)
    return (time.perf_counter() - began) / steps


WAYS: dict[str, Callable[[Job], Any]] = {"fit": fit, "input": feed}


def run(fields: dict[str, Any]) -> Iterator[Any]:
    """Do the job that has these fields, on the cores and threads of a single rank; yield its rates.

    They are a list of images per second for ``fit``, by name for ``input``.
    """
    job = Job(**fields)
    with loading():
        import tensorflow  # noqa: F401
    yield WAYS[job.way](job)

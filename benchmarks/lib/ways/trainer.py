"""The ways of `benchmarks/trainer.py` that are not the trainer itself."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any

from train.parallel.startup import prepare_import

SEED = 0
LOAD = 0.8  # the part of what can be read that the consumer takes
TURNS = 5


@dataclass(frozen=True)
class Job:
    """What a process does. ``slices`` is the URI of the manifest's folder.

    For ``fit``: ``epochs`` of ``model`` in batches of ``batch``, at the learning rate ``lr``, with Keras' ``jit``. For
    ``input``: the ``seconds`` of each consumer.
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
    from train.reader.config import ReaderOptions
    from train.tf_backend.builders import build
    from train.tf_backend.decode import Decoder

    reader = OurReader(job.slices, job.batch, ReaderOptions(), drop_last=False)
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
    """Images per second of a consumer that works for a fixed time on each batch, as an accelerator does.

    ``real`` takes pictures from the slices, ``synthetic`` one batch in memory, repeated. Their time for a batch is such
    that they take 80 percent of the pictures of ``unlimited``, which works on none. The speed of a machine changes
    within seconds: each takes five turns.
    """
    from lib.ways.our_reader import OurReader
    from train.reader.config import ReaderOptions
    from train.tf_backend.decode import Decoder
    from train.tf_backend.throughput import BATCH

    reader = OurReader(job.slices, BATCH, ReaderOptions())
    pictures = reader.pictures(count(), Decoder(reader.manifest, reader.manifest.size))
    in_memory = repeat(next(pictures))
    turn_s = job.seconds / TURNS
    consume(pictures, turn_s, 0.0)  # starts all threads, and fills the page cache
    turns: dict[str, list[float]] = {"real": [], "synthetic": [], "unlimited": []}  # seconds of a batch
    for _ in range(TURNS):
        unlimited = consume(pictures, turn_s, 0.0)
        turns["unlimited"].append(unlimited)
        turns["synthetic"].append(consume(in_memory, turn_s, unlimited / LOAD))  # meanwhile pictures are read ahead
        turns["real"].append(consume(pictures, turn_s, unlimited / LOAD))
    return {way: BATCH * TURNS / sum(seconds) for way, seconds in turns.items()}


def consume(batches: Iterator[Any], seconds: float, step_s: float) -> float:
    """Take batches so long, one ahead of an accelerator that works on each for ``step_s``; its seconds for a batch.

    It begins with a batch once that is there and the one before is done. The next is taken meanwhile, as the trainer
    does: a late wake-up of this thread alone keeps no accelerator waiting.
    """
    began = done = time.perf_counter()
    taken = 0
    while done - began < seconds:
        next(batches)
        taken += 1
        now = time.perf_counter()
        starts = max(now, done)
        done = starts + step_s
        time.sleep(starts - now)
    return (done - began) / taken


WAYS: dict[str, Callable[[Job], Any]] = {"fit": fit, "input": feed}


def run(fields: dict[str, Any]) -> Iterator[Any]:
    """Do the job that has these fields, on the cores and threads of a single rank; yield its rates.

    They are a list of images per second for ``fit``, by name for ``input``.
    """
    job = Job(**fields)
    with prepare_import():
        import tensorflow  # noqa: F401
    yield WAYS[job.way](job)

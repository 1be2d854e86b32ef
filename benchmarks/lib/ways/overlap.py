"""Trains on one synthetic batch with buckets of several sizes; run by each rank that `benchmarks/overlap.py` starts.

    horovodrun -np 2 benchmarks/lib/ways/overlap.py STEPS ROUNDS MODEL:SIDE:BATCH|delayed:GRADIENTS:MB BYTES …

Rank 0 prints a line of JSON for each size and round, in turns: the bytes, and milliseconds per step (median); of a
delayed step also when the first one ``started`` and when each gradient was ``there``, in seconds since 1970.
"""

import json
import statistics
import sys
import threading
import time
from typing import Any

from train.parallel.startup import prepare_import

with prepare_import():
    import keras
    import numpy as np
    import tensorflow as tf

    from train.config.recipe import Recipe
    from train.config.settings import Settings
    from train.monitor.monitor import Monitor
    from train.strategies import horovod_ring as strategies
    from train.strategies.horovod_ring import Ring, RingReplicas
    from train.tf_backend.builders import build
    from train.tf_backend.optimizer import make_optimizer
    from train.tf_backend.steps import NO_NUMBERS, compile_train_step

CLASSES, CHANNELS = 10, 3
DELAYED, DELAY_S = "delayed", 0.05


def wide(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """100 MB of weights in six dense layers of one size: the backward pass has their gradients one after the other."""
    layers = [keras.layers.Dense(2_048, "relu") for _ in range(6)]
    return keras.Sequential([keras.Input(shape), keras.layers.Flatten(), *layers, keras.layers.Dense(classes)])


def make_step(model: str, side: int, batch: int, replicas: RingReplicas) -> Any:
    """A function without arguments that takes one training step."""
    keras.utils.set_random_seed(0)
    shape = (side, side, CHANNELS)
    made = build(model, shape, CLASSES, [128.0] * CHANNELS, [64.0] * CHANNELS)
    recipe = Recipe(model=model, batch=batch)
    optimizer = make_optimizer(recipe, made.trainable_variables)
    optimizer.learning_rate = 1e-6
    train_step = compile_train_step(made, optimizer, replicas, Settings(data="", recipe=recipe))
    generator = np.random.default_rng(replicas.rank)
    pixels = tf.constant(generator.integers(0, 256, (batch, *shape), np.uint8))
    labels, weights = tf.constant(generator.integers(0, CLASSES, batch)), tf.ones(batch)
    numbers = {"step": tf.constant(0), "before": tf.constant(NO_NUMBERS)}
    return lambda: train_step(pixels, labels, weights, **numbers)


def make_delayed_step(count: int, megabytes: int, replicas: RingReplicas, there: list[float]) -> Any:
    """The same of a backward pass that takes no thread of TensorFlow's, as on an accelerator: a gradient
    each `DELAY_S`, whose time goes to ``there``.
    """
    device = tf.queue.FIFOQueue(count, [tf.float32], [()])

    def compute() -> None:
        for _ in range(count):
            time.sleep(DELAY_S)
            there.append(time.time())
            device.enqueue(1.0)

    @tf.function(autograph=False)
    def reduce() -> tf.Tensor:
        gradients, last = [], tf.constant(1.0)
        for _ in range(count):  # the last variable's first
            with tf.control_dependencies([last]):
                last = device.dequeue()
            gradients.append(tf.fill([megabytes << 18], last))
        return tf.add_n([each[0] for each in replicas.average_gradients(gradients[::-1])])

    def take_step() -> None:
        computing = threading.Thread(target=compute)
        computing.start()
        reduce()
        computing.join()

    return take_step


def main(steps: str, rounds: str, job: str, *sizes: str) -> None:
    ring = Ring(Monitor())
    replicas = RingReplicas(ring, Monitor())
    model, side, batch = job.rsplit(":", 2)
    ways = {}
    there: list[float] = []
    for size in sizes:
        strategies.BUCKET_BYTES = int(size)  # read when the step is traced
        make = make_delayed_step(int(side), int(batch), replicas, there) if model == DELAYED else None
        ways[size] = make or make_step(model, int(side), int(batch), replicas)
        ways[size]()
    for _ in range(int(rounds)):
        for size, take_step in ways.items():
            seconds, begun = [], time.time()
            there.clear()
            for _ in range(int(steps)):
                started = time.perf_counter()
                take_step()
                seconds.append(time.perf_counter() - started)
            sample: dict[str, Any] = {"bytes": int(size), "ms": 1_000 * statistics.median(seconds)}
            if there:
                sample |= {"started": begun, "there": there[: int(side)]}
            if ring.rank == 0:
                print(json.dumps(sample), flush=True)
    ring.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

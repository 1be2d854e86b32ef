"""What TensorFlow's strategies compute on their own: the shares of a step, whose padding comes last and is divided,
too; and how long a worker waits for the chief.
"""

import os
import socket
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from etl.errors import EnvironmentFailure, UsageError
from tests.lib.commands import PATIENCE_S
from train.launch import free_ports
from train.parallel.cluster import Task
from train.reader.intervals import Steps
from train.strategies import parameter_server
from train.strategies.mirrored import divided
from train.strategies.parameter_server import FACTS, await_end, publish_versions
from train.strategies.parameter_server_trainer import PureModel, divide, update_part

BATCH, COPIES = 64, 16


def test_copies_have_nearly_as_many_examples_as_each_other() -> None:
    """Of 1,437 in steps that are not full; predictions come back in order."""
    steps = Steps(1437, 1, BATCH * COPIES)
    numbers = tf.range(BATCH * COPIES)
    for step in range(steps.number):
        weights = tf.constant((np.arange(BATCH * COPIES) < steps.real(0, step)).astype(np.float32))
        counts = [float(tf.reduce_sum(each)) for each in divided(weights, COPIES, in_turn=True)]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == steps.real(0, step)
    assert sorted(tf.concat(divided(numbers, COPIES, in_turn=True), 0).numpy()) == list(range(BATCH * COPIES))
    assert list(tf.concat(divided(numbers, COPIES, in_turn=False), 0).numpy()) == list(range(BATCH * COPIES))


def test_workers_have_nearly_as_many_examples_as_each_other() -> None:
    """Those of the copies of `mirrored`, if none is skipped; each example once."""
    for accumulate, skipped in product((1, 3), ([], [0, 7, 8, 400])):
        weights = (np.arange(BATCH * COPIES) < 718).astype(np.float32)
        weights[skipped] = 0
        numbers = np.arange(len(weights))
        columns = [tf.constant(each) for each in (numbers.astype(str), numbers, weights)]
        parts = divide([*columns, tf.constant(5)], COPIES, accumulate)
        sizes = [len(each[1]) for each in parts]
        assert len(parts) == COPIES * accumulate
        assert max(sizes) - min(sizes) <= 1
        assert sorted(np.concatenate([each[1] for each in parts])) == np.flatnonzero(weights).tolist()
        if not skipped:
            second = np.concatenate([each[1] for each in parts[accumulate : 2 * accumulate]])
            assert second.tolist() == list(range(1, 718, COPIES))


def test_each_of_the_workers_adds_its_share_of_a_change_of_batch_norm() -> None:
    """All of them have read the same value; the full change of each would lead beyond what it leads to."""
    statistic, own = keras.Variable(1.0), tf.constant(0.5)
    computed = [own, -0.8 * own, tf.zeros(3), tf.constant([b"key"])]  # no gradients
    part = update_part(lambda: computed, Mock(), [statistic], workers=4)
    for _ in range(4):
        part()
    assert float(statistic.numpy()) == pytest.approx(0.2)


class Counted(keras.layers.Layer):
    """Counts its calls in training."""

    def build(self, _: object) -> None:
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, features: tf.Tensor, training: bool = False) -> tf.Tensor:
        if training:
            self.calls.assign_add(1)
        return features


def test_a_layer_whose_changes_would_be_lost_is_refused() -> None:
    """The draws of dropout, and batch norm's statistics, are no such changes."""
    layers = [keras.Input([3]), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()]
    PureModel(keras.Sequential(layers), 0)(tf.ones([2, 3]), training=True)
    with pytest.raises(UsageError, match=r"--model: a layer changes .*calls \(int32\) in training"):
        PureModel(keras.Sequential([*layers, Counted()]), 0)(tf.ones([2, 3]), training=True)


def test_a_step_without_examples_has_one_part() -> None:
    columns = [tf.constant(["a", "b"]), tf.constant([0, 1]), tf.constant([0.0, 0.0])]
    [(records, *_, weights, seed)] = divide([*columns, tf.constant(5)], 2, 1)
    assert (records.numpy().tolist(), weights.numpy().tolist(), int(seed)) == ([b"a"], [0.0], 5)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    """One that looks often, and waits for a chief that has not come for no time."""
    monkeypatch.setattr(parameter_server, "LOOK_S", 0.01)
    monkeypatch.setattr(parameter_server, "JOIN_TIMEOUT_S", 0.0)
    yield Task({"chief": [f"127.0.0.1:{free_ports(1)[0]}"]}, "worker", 1)
    os.close(FACTS)


def test_ports_are_none_that_connections_get() -> None:
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert max(free_ports(100)) < int(ephemeral[0])


def test_a_chief_that_does_not_come_is_named(worker: Task) -> None:
    with pytest.raises(EnvironmentFailure, match=r"worker 1: the chief did not come to 127.0.0.1:\d+ within 0 s"):
        await_end(worker, publish_versions())


def test_a_chief_that_ends_before_the_first_look_has_come(worker: Task) -> None:
    unread = publish_versions()
    tf.io.read_file(f"/proc/self/fd/{FACTS}")
    await_end(worker, unread)


def test_a_worker_ends_after_its_chief(worker: Task) -> None:
    host, _, port = worker.cluster["chief"][0].rpartition(":")
    with socket.create_server((host, int(port))) as chief:
        waiting = threading.Thread(target=await_end, args=[worker, publish_versions()], daemon=True)
        waiting.start()
        chief.accept()[0].close()
        assert waiting.is_alive()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()

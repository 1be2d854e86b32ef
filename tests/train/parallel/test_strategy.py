"""What the strategy asks of Horovod: two ranks, of which the other's values are twice this one's."""

from collections.abc import Sequence

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from train.monitor.heartbeat import Pulse
from train.parallel import strategy
from train.parallel.strategy import Horovod, average_state


def reduced(tensor: tf.Tensor, op: object) -> tf.Tensor:
    """The sum over both ranks, or the mean."""
    total = tensor + 2 * tensor
    return {hvd.Sum: total, hvd.Average: total / 2}[op]


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> Horovod:
    kinds: list[tf.DType] = []

    def reduce_group(tensors: Sequence[tf.Tensor], op: object) -> list[tf.Tensor]:
        kinds.extend(each.dtype for each in tensors)
        return [reduced(each, op) for each in tensors]

    for name, value in (("init", lambda: None), ("rank", lambda: 1), ("size", lambda: 2)):
        monkeypatch.setattr(hvd, name, value)
    monkeypatch.setattr(hvd, "allgather_object", lambda value: [value + 1, value])
    monkeypatch.setattr(hvd, "grouped_allreduce", reduce_group)
    monkeypatch.setattr(hvd, "allreduce", reduced)
    monkeypatch.setattr(strategy, "PULSE", Pulse())
    ring = Horovod(generation=3)
    ring.kinds = kinds  # type: ignore[attr-defined]
    return ring


def test_it_knows_its_place(horovod: Horovod) -> None:
    assert (horovod.rank, horovod.size, horovod.generation) == (1, 2, 4)


def test_gradients_are_averaged_and_statistics_summed(horovod: Horovod) -> None:
    tensors = [tf.constant([2.0, 4.0]), tf.constant(6.0)]
    assert [each.numpy().tolist() for each in horovod.average(tensors)] == [[3, 6], 9]
    assert horovod.sum_in_graph(tensors[0]).numpy().tolist() == [6, 12]
    assert horovod.sum([2, 0.5]) == [6, 1.5]


def test_halves_go_round_and_scalars_stay_exact(horovod: Horovod) -> None:
    """The scalar is how full a step is: what all gradients are divided by."""
    exact = 2 / 3
    gradient, full, other = horovod.average([tf.constant([1.0]), tf.constant(exact), tf.constant([[3.0]])], half=True)
    assert horovod.kinds == [tf.float32, tf.float16, tf.float16]  # type: ignore[attr-defined]
    assert {each.dtype for each in (gradient, full, other)} == {tf.float32}
    assert (gradient.numpy().tolist(), other.numpy().tolist()) == ([1.5], [[4.5]])
    assert float(full) == pytest.approx(exact * 1.5, rel=1e-6)


def test_running_statistics_become_their_mean(horovod: Horovod) -> None:
    mean, count = keras.Variable([2.0, 4.0]), keras.Variable(7, dtype="int32")
    average_state(horovod, [mean, count])
    assert np.array_equal(mean.numpy(), [3, 6])
    assert int(count.numpy()) == 7

"""What the strategy asks of Horovod: two ranks, of which the other's values are twice this one's."""

from collections.abc import Sequence

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf

from train.monitor.monitor import Monitor
from train.strategies import horovod_ring as module
from train.strategies.horovod_ring import Ring, RingReplicas, name_lost_ranks


def reduced(tensor: tf.Tensor, op: object) -> tf.Tensor:
    """The sum over both ranks, or the mean."""
    total = tensor + 2 * tensor
    return {hvd.Sum: total, hvd.Average: total / 2}[op]


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    for name, value in (("init", lambda: None), ("rank", lambda: 1), ("size", lambda: 2)):
        monkeypatch.setattr(hvd, name, value)
    monkeypatch.setattr(hvd, "allgather_object", lambda value: [value + 1, value])
    monkeypatch.setattr(hvd, "allreduce", reduced)
    return Ring(Monitor(), generation=3)


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[tf.DType]:
    """The types of all tensors that are reduced in groups."""
    found: list[tf.DType] = []

    def reduce_group(tensors: Sequence[tf.Tensor], op: object) -> list[tf.Tensor]:
        found.extend(each.dtype for each in tensors)
        return [reduced(each, op) for each in tensors]

    monkeypatch.setattr(hvd, "grouped_allreduce", reduce_group)
    return found


@pytest.fixture
def replicas(ring: Ring, kinds: list[tf.DType]) -> RingReplicas:
    return RingReplicas(ring, Monitor())


def test_gradients_are_averaged_and_statistics_summed(ring: Ring, replicas: RingReplicas) -> None:
    assert (ring.rank, ring.size, ring.generation) == (1, 2, 4)
    tensors = [tf.constant([2.0, 4.0]), tf.constant(6.0)]
    assert [each.numpy().tolist() for each in replicas.average(tensors)] == [[3, 6], 9]
    assert replicas.sum_in_graph(tensors[0]).numpy().tolist() == [6, 12]
    counts = ring.all_reduce(np.array([[1, 2**60]]))
    assert counts.dtype == np.int64
    assert counts.tolist() == [[3, 3 * 2**60]]


def test_gradients_of_all_types_are_reduced_together(replicas: RingReplicas, kinds: list[tf.DType]) -> None:
    """Horovod takes but one type in a group."""
    types = [tf.float32, tf.float64, tf.bfloat16]
    found = replicas.average_gradients([tf.constant([2.0, 4.0], each) for each in types])
    assert kinds == [tf.float32] * 3
    assert [each.dtype for each in found] == types
    assert all(each.numpy().tolist() == [3, 6] for each in found)


def test_gradients_are_reduced_as_halves(replicas: RingReplicas, kinds: list[tf.DType]) -> None:
    """Divided by the number of ranks before the cast: 40,000 of each of two ranks is no overflow."""
    first, second = replicas.average_gradients([tf.constant([1.0, 40_000.0]), tf.constant([[3.0]])], half=True)
    assert kinds == [tf.float16, tf.float16]
    assert {first.dtype, second.dtype} == {tf.float32}
    np.testing.assert_allclose(first, [1.5, 60_000.0], rtol=1e-3)
    assert second.numpy().tolist() == [[4.5]]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([], []), ([0], [[0]]), ([1, 2, 3], [[2, 1, 0]]), ([9, 1, 1, 9, 8, 7, 1], [[6, 5], [4], [3], [2, 1, 0]])],
)
def test_gradients_are_reduced_last_first(
    sizes: list[int], expected: list[list[int]], replicas: RingReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUCKET_BYTES", 8)
    assert module.buckets(sizes) == expected
    means = replicas.average_gradients([tf.constant([float(number)] * number) for number in range(1, 6)])
    assert [each.numpy().tolist() for each in means] == [[number * 1.5] * number for number in range(1, 6)]


def test_an_op_that_refuses_its_tensor_is_no_lost_rank() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="bfloat16"), name_lost_ranks(Monitor()):
        raise tf.errors.InvalidArgumentError(None, None, "Value for attr 'T' of bfloat16 is not in HorovodBroadcast's")

"""What the strategy asks of Horovod, of two ranks; where ranks that form a ring again go on."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import horovod.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.elastic.discovery import FixedHosts
from horovod.runner.elastic.driver import ElasticDriver

from tests.lib.commands import PATIENCE_S, wait_until
from tests.lib.ranks.threads import ThreadRank, on_ranks
from train.checkpoints.safetensors_file import Arrays
from train.monitor.monitor import Monitor
from train.parallel.trainer import Trainer
from train.reader.state import ReaderState
from train.runs.metrics import Line
from train.runs.position import Position
from train.runs.run import Run
from train.strategies import horovod_ring as module
from train.strategies.elastic import Elastic, ElasticState, HostChanges
from train.strategies.horovod_ring import Ring, RingReplicas, name_lost_ranks


def test_a_lost_worker_is_replaced_on_a_host_that_is_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Horovod's driver: its cooldown may be over before the others have noticed that the worker is lost."""
    started, lost, over = list[str](), threading.Event(), threading.Event()

    def create_worker(slot: SlotInfo, events: Sequence[threading.Event]) -> tuple[int, float]:
        del events
        started.append(slot.hostname)
        (lost if slot.hostname == "b" and started.count("b") == 1 else over).wait(PATIENCE_S)
        return 1, 0.0

    rendezvous = SimpleNamespace(init=lambda assignments: None, stop=lambda: None)
    driver = ElasticDriver(rendezvous, FixedHosts({"a": 1, "b": 1}), min_num_proc=1, max_num_proc=2)
    monkeypatch.setattr(driver._host_manager, "blacklist", lambda host: None)  # it is back
    wait_until(lambda: driver._host_manager.current_hosts.count_available_slots() == 2)
    driver._host_manager._current_hosts._host_assignment_order.sort()
    driver.start(2, create_worker)
    wait_until(lambda: started == ["a", "b"])
    threading.Thread(target=driver.record_ready, args=("a", 0), daemon=True).start()
    lost.set()
    wait_until(lambda: started == ["a", "b", "b"])
    over.set()
    driver.stop()


def reduced(tensor: tf.Tensor, op: object) -> tf.Tensor:
    """The sum over both ranks, or the mean."""
    total = tensor + 2 * tensor
    return {hvd.Sum: total, hvd.Average: total / 2}[op]


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> RingReplicas:
    """Those of rank 1 of two. What they reduce in a group must be of one type, as Horovod's groups are."""

    def reduce_group(tensors: Sequence[tf.Tensor], op: object) -> list[tf.Tensor]:
        assert len({each.dtype for each in tensors}) == 1
        return [reduced(each, op) for each in tensors]

    for name, value in (("init", lambda: None), ("rank", lambda: 1), ("size", lambda: 2)):
        monkeypatch.setattr(hvd, name, value)
    monkeypatch.setattr(hvd, "allgather_object", lambda value: [value + 1, value])
    monkeypatch.setattr(hvd, "allreduce", reduced)
    monkeypatch.setattr(hvd, "grouped_allreduce", reduce_group)
    return RingReplicas(Ring(Monitor()), Monitor())


def test_gradients_of_all_types_are_averaged_and_statistics_summed(replicas: RingReplicas) -> None:
    ring = Ring(Monitor(), generation=3)
    assert (ring.rank, ring.size, ring.generation) == (1, 2, 4)
    tensors = [tf.constant([2.0, 4.0]), tf.constant(6.0)]
    assert [each.numpy().tolist() for each in replicas.average(tensors)] == [[3, 6], 9]
    assert replicas.sum_in_graph(tensors[0]).numpy().tolist() == [6, 12]
    counts = ring.all_reduce(np.array([[1, 2**60]]))
    assert counts.dtype == np.int64
    assert counts.tolist() == [[3, 3 * 2**60]]
    types = [tf.float32, tf.float64, tf.bfloat16]
    found = replicas.average_gradients([tf.constant([2.0, 4.0], each) for each in types])
    assert [each.dtype for each in found] == types
    assert all(each.numpy().tolist() == [3, 6] for each in found)


def test_gradients_are_reduced_as_halves(replicas: RingReplicas) -> None:
    """Divided by the number of ranks before the cast: 40,000 of each of two ranks is no overflow."""
    first, second = replicas.average_gradients([tf.constant([1.0, 40_000.0]), tf.constant([[3.000_1]])], half=True)
    assert {first.dtype, second.dtype} == {tf.float32}
    np.testing.assert_allclose(first, [1.5, 60_000.0], rtol=1e-3)
    assert second.numpy().tolist() == [[4.5]]  # as no float32 is


def test_gradients_are_reduced_last_first(replicas: RingReplicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUCKET_BYTES", 8)
    assert (module.buckets([]), module.buckets([0])) == ([], [[0]])
    assert module.buckets([9, 1, 1, 9, 8, 7, 1]) == [[6, 5], [4], [3], [2, 1, 0]]
    means = replicas.average_gradients([tf.constant([float(number)] * number) for number in range(1, 6)])
    assert [each.numpy().tolist() for each in means] == [[number * 1.5] * number for number in range(1, 6)]


def test_an_op_that_refuses_its_tensor_is_no_lost_rank() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="bfloat16"), name_lost_ranks(Monitor()):
        raise tf.errors.InvalidArgumentError(None, None, "Value for attr 'T' of bfloat16 is not in HorovodBroadcast's")


Found = tuple[Position, list[float], list[Line]]


class ThreadTrainer:
    """Has one variable, and no model."""

    def __init__(self, collective: ThreadRank, value: float) -> None:
        self._collective = collective
        self.arrays: dict[str, Arrays] = {"model": {"w": np.full(2, value, np.float32)}}

    def state(self) -> dict[str, Arrays]:
        return self.arrays

    def load_state(self, state: dict[str, Arrays], source: str) -> None:
        assert source == "the last commit"
        self.arrays = state

    def broadcast_state(self, root: int = 0) -> None:
        self.arrays = self._collective.broadcast_object(self.arrays, root)


class ThreadElastic(Elastic):
    """A ring of threads."""

    collective: Any

    def __init__(self, collective: ThreadRank, memory: ElasticState) -> None:
        self.collective, self._memory = collective, memory
        self._host_changes = cast(HostChanges, SimpleNamespace(check=lambda collective: None))


def position(step: int, epoch: int = 1) -> Position:
    """After so many steps of 2 examples on each of 3 ranks."""
    reader = ReaderState("these", "train", 0, epoch, 16, ((0, 102),), world_size=3, batch=2, taken=step)
    return Position(step, reader, rolled_back=1)


def memory(at: Position | None = None, value: float = 0.0, steps_since: int = 0) -> ElasticState:
    """Of a rank that committed ``at`` a position, with this weight, and took so many steps beyond."""
    made = ElasticState()
    if at is not None:
        trainer = cast(Trainer, ThreadTrainer(ThreadRank(cast(Any, SimpleNamespace(size=1)), 0), value))
        strategy = ThreadElastic(cast(Any, None), made)
        strategy.commit(cast(Run, None), at, trainer, [{"kind": "step", "step": at.step}])
        for _ in range(steps_since):
            strategy.after_step()
    return made


def restore(memories: Sequence[ElasticState]) -> list[Found | None]:
    """Where each rank goes on, its weights then, and its lines of metrics."""

    def of_rank(rank: ThreadRank) -> Found | None:
        trainer = ThreadTrainer(rank, value=-1.0 - rank.rank)
        found = ThreadElastic(rank, memories[rank.rank]).restore(cast(Trainer, trainer), lambda line: None)
        return None if found is None else (found[0], trainer.arrays["model"]["w"].tolist(), found[1])

    return on_ranks(len(memories), of_rank)


def test_all_go_on_from_the_newest_commit_of_any() -> None:
    """The others are new, or missed the last one."""
    for source in range(3):
        memories = [memory(), memory(), memory()]
        memories[source - 1] = memory(position(4), 0.25, 9)
        memories[source] = memory(position(10), 0.5, steps_since=3)
        for found in restore(memories):
            assert found is not None
            at, weights, lines = found
            assert (at.step, at.reader.taken, at.rolled_back) == (10, 10, 1 + 3)
            assert weights == [0.5, 0.5]
            assert lines == [{"kind": "step", "step": 10}]


def test_at_the_same_step_a_rank_that_has_begun_the_next_epoch_is_ahead() -> None:
    """Without a commit the run begins, or goes on from a checkpoint."""
    found = restore([memory(position(10), 0.25), memory(position(10, epoch=2), 0.5)])
    assert [each and (each[0].epoch, each[1]) for each in found] == [(2, [0.5, 0.5])] * 2
    assert restore([memory(), memory()]) == [None, None]

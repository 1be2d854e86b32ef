"""Rings that change: a rank that dies is done without, one that joins is used, and the run goes on.

``horovodrun --host-discovery-script`` starts ranks where there are hosts and notifies rank 0 when that changes. When a
rank is lost, or at the next commit after hosts have changed, all ranks that are left leave the ring and make another
one, together with those that are new. Then each of them goes through the same steps from the top, so that it makes no
difference who is new; those that stay bring the last commit along, in their `ElasticState`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from horovod.common.elastic import notification_manager

from train.checkpoints.safetensors_file import Arrays
from train.monitor.messages import PeerLost
from train.monitor.monitor import Monitor
from train.parallel.collective import Collective, HostsChanged
from train.parallel.trainer import Trainer
from train.runs.metrics import Line
from train.runs.position import Position
from train.runs.run import Run
from train.strategies.horovod_ring import Horovod, RemovedError, name_lost_ranks
from train.tf_backend.devices import take_device


class HostChanges:
    """Is notified of hosts that come and go; on rank 0, because the launcher notifies no other."""

    def __init__(self) -> None:
        self._changed = threading.Event()
        notification_manager.init()
        notification_manager.register_listener(self)

    def on_hosts_updated(self, timestamp: int, update: object) -> None:
        """What Horovod's notification service calls."""
        del timestamp, update
        self._changed.set()

    def check(self, collective: Collective) -> None:
        """Raise HostsChanged, on all ranks at once, if rank 0 was notified of a change."""
        if collective.run_on_root(self._changed.is_set):
            raise HostsChanged

    def clear(self) -> None:
        """A ring is about to be made with the hosts that there are now."""
        self._changed.clear()


@dataclass
class ElasticState:
    """What a process takes along from one ring to the next: the run, its last commit with the metrics that are not
    written yet, and how many steps it took beyond.
    """

    run: Run | None = None
    position: Position | None = None
    arrays: dict[str, Arrays] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    steps_since: int = 0


class Elastic(Horovod):
    """The ranks of one ring of a run, and what this process remembers of the rings before."""

    is_elastic = True

    def __init__(self, monitor: Monitor, generation: int, memory: ElasticState, host_changes: HostChanges) -> None:
        super().__init__(monitor, generation)
        self._memory, self._host_changes = memory, host_changes

    @property
    def earlier(self) -> Run | None:
        return self._memory.run

    def after_step(self) -> None:
        self._memory.steps_since += 1

    def is_due(self, position: Position) -> bool:
        return self._memory.run is not None and position.step % self._memory.run.settings.commit_steps == 0

    def commit(self, run: Run, position: Position, trainer: Trainer, lines: list[Line]) -> None:
        memory = self._memory
        memory.run, memory.position, memory.arrays, memory.lines = run, position, trainer.state(), lines
        memory.steps_since = 0
        self._host_changes.check(self.collective)

    def restore(self, trainer: Trainer, log: Callable[[str], None]) -> tuple[Position, list[Line]] | None:
        memory, rank = self._memory, self.collective.rank
        commits = self.collective.gather_object((memory.position, memory.steps_since))
        progress = [(at.step, at.epoch, len(at.trained)) if at else (-1, 0, 0) for at, _ in commits]
        source = progress.index(max(progress))
        position, lost = commits[source]
        if position is None:
            return None
        lines = self.collective.broadcast_object(memory.lines if source == rank else [], source)
        if source == rank:
            trainer.load_state(memory.arrays, "the last commit")
        trainer.broadcast_state(source)
        if self.collective.is_root:
            log(f"{self.collective.size} ranks go on from step {position.step}; {lost} steps are taken again")
        return replace(position, rolled_back=position.rolled_back + lost), lines


def run_in_rings(work: Callable[[Elastic], None], monitor: Monitor, device: str) -> None:
    """Call ``work`` in one ring after the other, until it is done; each rank has its ``device`` of --device.

    Raises what ``work`` raises, but for lost peers: PeerLost if one has ended for what would end any other too.
    """
    take_device(device)
    host_changes, memory = HostChanges(), ElasticState()
    generation = 0
    while True:
        strategy: Elastic | None = None
        try:
            with name_lost_ranks(monitor):
                host_changes.clear()
                strategy = Elastic(monitor, generation, memory, host_changes)
                work(strategy)
            return
        except HostsChanged:
            why, is_logged = "hosts have come or gone", strategy is not None and strategy.collective.is_root
        except RemovedError:
            return  # its launcher has removed it, and no rank waits for it
        except PeerLost as lost:
            if lost.ends_all:
                raise
            why, is_logged = str(lost), not lost.is_reported
        monitor.left()
        if is_logged:
            monitor.log(f"{why}; making a new ring")
        if strategy is not None:
            generation = strategy.collective.generation + 1
            with suppress(Exception):  # of a ring that is broken there is nothing to part from
                strategy.collective.close()

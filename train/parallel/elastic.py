"""Rings that change: a rank that dies is done without, one that joins is used, and the run goes on.

``horovodrun --host-discovery-script`` starts ranks where there are hosts and tells rank 0 when that changes. Whenever a
rank is lost, or at the next commit after hosts have changed, all ranks that are left leave the ring and make another
one, together with those that are new. Then every one of them goes through the same steps from the top, so that it makes
no difference who is new; what those that stay bring along is the last commit (`train.trainer.commits`).
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from horovod.common.elastic import notification_manager

from train.monitor.messages import PeerLost
from train.monitor.monitor import Monitor
from train.parallel.strategy import Horovod, RemovedError, Strategy, telling_lost_peers


class HostsChanged(Exception):
    """Hosts have come or gone: the ring is to be made anew."""


class Membership:
    """Hears of hosts that come and go; rank 0 does, for the launcher tells nobody else."""

    def __init__(self) -> None:
        self._changed = threading.Event()
        notification_manager.init()
        notification_manager.register_listener(self)

    def on_hosts_updated(self, timestamp: int, update: object) -> None:
        """What Horovod's notification service calls."""
        del timestamp, update
        self._changed.set()

    def check(self, strategy: Strategy) -> None:
        """Raise HostsChanged, on all ranks at once, where rank 0 has heard of a change."""
        if strategy.from_root(self._changed.is_set):
            raise HostsChanged

    def renew(self) -> None:
        """A ring is about to be made with the hosts that there are now."""
        self._changed.clear()


def in_rings(work: Callable[[Strategy, Membership], None], monitor: Monitor) -> None:
    """Do ``work`` in one ring after the other, until it is done.

    Raises what ``work`` raises, but for lost peers: PeerLost where one has ended for what would end any other too.
    """
    membership = Membership()
    generation = 0
    while True:
        strategy: Horovod | None = None
        try:
            with telling_lost_peers(monitor):
                membership.renew()
                strategy = Horovod(monitor, generation)
                work(strategy, membership)
            return
        except HostsChanged:
            why, tells = "hosts have come or gone", strategy is not None and strategy.rank == 0
        except RemovedError:
            return  # its launcher wants it no more, and nobody counts on it
        except PeerLost as lost:
            if lost.ends_all:
                raise
            why, tells = str(lost), not lost.told
        monitor.left()
        if tells:
            monitor.log(f"{why}; making a new ring")
        if strategy is not None:
            generation = strategy.generation + 1
            with suppress(Exception):  # of a ring that is broken there is nothing to part from
                strategy.leave()

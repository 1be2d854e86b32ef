"""What a rank of a ring that ends reports of the others: it waits for their exit notices; one rank names the cause."""

import time
from collections.abc import Callable

from etl.errors import ERROR_PREFIX
from train.monitor import messages
from train.monitor.heartbeat import Beat
from train.monitor.host_notes import BEAT_S, HostNotes
from train.monitor.messages import LostRank
from train.monitor.peers import Peers, observes

NOTICES_S = 2.5  # for the others' exit notices: the launcher kills what is left 5 s after SIGTERM
POLL_S = 0.05
PRINTING_S = 0.25  # between two notes of a host in a large ring, while its ranks end


class ExitReporter:
    """``publish`` puts this rank's note again, with its exit notice."""

    def __init__(self, host_notes: HostNotes, publish: Callable[[], None], remedy: str, elastic: bool) -> None:
        self._host_notes, self._publish, self._remedy, self._elastic = host_notes, publish, remedy, elastic

    def lost(self, own: Beat) -> tuple[list[LostRank], bool]:
        """Which ranks are gone, and True if this rank reports it."""
        is_observer = observes(own.rank, own.size)
        # an elastic rank must know whether it goes on, but in a ring of many hosts too many ranks would ask
        if not is_observer and (not self._elastic or self._host_notes.is_crowded):
            return [], False
        try:
            peers = self._await_notices(own)
        except OSError:  # the launcher is gone
            return [], own.rank == 0
        reporters = peers.moving if self._elastic else messages.leaving(peers.exit_notices, own.size)
        is_reporting = is_observer and own.rank < min(reporters, default=own.size)
        return messages.find_lost(peers.notes, peers.silent), is_reporting

    def interrupted(self, own: Beat) -> str:
        """The line that this rank prints after a signal; empty if another rank reports."""
        interrupted = f"ringslice: interrupted; {self._remedy}"
        if own.size == 1:
            return interrupted if own.rank == 0 else ""
        if not observes(own.rank, own.size):
            self._linger()
            return ""
        try:
            peers = self._await_notices(own)
        except OSError:  # the launcher is gone
            return interrupted if own.rank == 0 else ""
        is_first = own.rank < min(messages.leaving(peers.exit_notices, own.size), default=own.size)
        if not is_first or any(each.is_cause for each in peers.exit_notices.values()):
            return ""
        dead = [] if self._elastic else [each for each in messages.find_lost(peers.notes, peers.silent) if each.died]
        if dead:
            return f"{ERROR_PREFIX}{messages.died(dead, self._remedy)}"
        if not peers.without_exit_notice:
            return interrupted
        alone = f"{ERROR_PREFIX}{own.rank_name} was ended by a signal {messages.in_words(own)}; {self._remedy}"
        return "" if self._elastic else alone

    def _linger(self) -> None:
        """Wait for the observers to see that this rank is interrupted, and not that the ring is broken."""
        deadline = time.monotonic() + NOTICES_S
        while time.monotonic() < deadline:
            self._publish()  # with those of other ranks of this host
            time.sleep(PRINTING_S)

    def _await_notices(self, own: Beat) -> Peers:
        """Wait until each other has announced its exit, or one that it was the cause; an elastic one may go on, too.

        In a ring of many hosts an observer does so only if none of a lower rank does. Raises OSError.
        """
        peers = Peers(self._host_notes, own.rank, own.size, own.generation)
        published = time.monotonic()
        deadline = published + NOTICES_S
        lower = [rank for rank in range(own.rank) if observes(rank, own.size)]
        if lower and self._host_notes.is_crowded and not self._elastic:
            time.sleep(BEAT_S)
            peers.look(lambda: time.monotonic() < deadline, lower)
            if messages.leaving(peers.exit_notices, own.size):
                return peers
        while True:
            try:
                peers.look(lambda: time.monotonic() < deadline, peers.without_exit_notice)
            except OSError:  # the launcher is gone, or so busy that it does not answer in time
                if time.monotonic() >= deadline:
                    raise
            pending = peers.silent if self._elastic else peers.without_exit_notice
            is_known = not pending or any(each.is_cause for each in peers.exit_notices.values())
            if is_known or time.monotonic() >= deadline:
                return peers
            if self._host_notes.is_crowded and time.monotonic() - published > PRINTING_S:
                published = time.monotonic()
                self._publish()
            time.sleep(POLL_S)

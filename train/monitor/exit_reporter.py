"""What a rank of a ring that ends says of the others: it waits for their exit notices, and one rank names the cause."""

import time
from collections.abc import Callable

from train.monitor import messages
from train.monitor.heartbeat import Beat
from train.monitor.host_notes import BEAT_S, HostNotes
from train.monitor.messages import PREFIX, Lost
from train.monitor.peers import Peers, observes

NOTICES_S = 2.5  # for the others' exit notices: the launcher kills what is left 5 s after SIGTERM
POLL_S = 0.05
PRINTING_S = 0.25  # between two notes of a host in a large ring, while its ranks end


class ExitReporter:
    """``tell`` puts this rank's note again, with the exit notice that it has put."""

    def __init__(self, host_notes: HostNotes, tell: Callable[[], None], remedy: str, elastic: bool) -> None:
        self._host_notes, self._tell, self._remedy, self._elastic = host_notes, tell, remedy, elastic

    def lost(self, own: Beat) -> tuple[list[Lost], bool]:
        """Which ranks are gone, and whether it is this rank's to say so."""
        is_observer = observes(own.rank, own.size)
        # an elastic rank must know whether it goes on, but in a ring of many hosts too many ranks would ask
        if not is_observer and (not self._elastic or self._host_notes.is_crowded):
            return [], False
        try:
            peers = self._await_words(own)
        except OSError:  # the launcher is gone
            return [], own.rank == 0
        tellers = peers.moving if self._elastic else messages.leaving(peers.exit_notices, own.size)
        tells = is_observer and own.rank < min(tellers, default=own.size)
        return messages.find_lost(peers.notes, peers.silent), tells

    def interrupted(self, own: Beat) -> str:
        """What this rank has to tell once it was told to end; empty if another tells."""
        interrupted = f"ringslice: interrupted; {self._remedy}"
        if own.size == 1:
            return interrupted if own.rank == 0 else ""
        if not observes(own.rank, own.size):
            self._linger()
            return ""
        try:
            peers = self._await_words(own)
        except OSError:  # the launcher is gone
            return interrupted if own.rank == 0 else ""
        is_first = own.rank < min(messages.leaving(peers.exit_notices, own.size), default=own.size)
        if not is_first or any(each.is_cause for each in peers.exit_notices.values()):
            return ""
        dead = [] if self._elastic else [each for each in messages.find_lost(peers.notes, peers.silent) if each.died]
        if dead:
            return f"{PREFIX}{messages.died(dead, self._remedy)}"
        if not peers.without_exit_notice:
            return interrupted
        alone = f"{PREFIX}{own.speaker} was told to end by a signal {messages.in_words(own)}; {self._remedy}"
        return "" if self._elastic else alone

    def _linger(self) -> None:
        """Wait for the observers to see that this rank is interrupted, and not that the ring is broken."""
        deadline = time.monotonic() + NOTICES_S
        while time.monotonic() < deadline:
            self._tell()  # what others of this host said, too
            time.sleep(PRINTING_S)

    def _await_words(self, own: Beat) -> Peers:
        """Wait until each other has announced its exit, or one that it was the cause; an elastic one may go on, too.

        In a ring of many hosts an observer does so only if none of a lower rank does. Raises OSError.
        """
        peers = Peers(self._host_notes, own.rank, own.size, own.generation)
        told = time.monotonic()
        deadline = told + NOTICES_S
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
            is_told = not pending or any(each.is_cause for each in peers.exit_notices.values())
            if is_told or time.monotonic() >= deadline:
                return peers
            if self._host_notes.is_crowded and time.monotonic() - told > PRINTING_S:
                told = time.monotonic()
                self._tell()
            time.sleep(POLL_S)

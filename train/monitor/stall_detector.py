"""Finds, on each rank, that there is no progress and which ranks are the reason; all ranks come to one verdict."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from etl.errors import ERROR_PREFIX
from train.monitor import messages
from train.monitor.heartbeat import GAP_S, READING, Beat
from train.monitor.host_notes import REQUESTS_PER_S, HostNotes
from train.monitor.notes import Verdict
from train.monitor.peers import Peers, observes

SILENT_TURNS = 2.5  # of a host in a large ring, without a new note: it is gone


@dataclass(frozen=True)
class Observation:
    """What a rank knows when it looks for late ranks.

    ``beats`` are the others' last ones, ``silent_s`` are the seconds, by this rank's clock, for which each other has
    not sent a new one. In a ring of many hosts, each sends one every ``turn_s``; else every second.
    """

    own: Beat
    beats: Mapping[int, Beat]
    silent_s: Mapping[int, float]
    turn_s: float = 0.0

    @property
    def everyone(self) -> dict[int, Beat]:
        """The last beat of each rank, this one's too."""
        return {**self.beats, self.own.rank: self.own}


def find_late(seen: Observation, timeout_s: float) -> list[int]:
    """The ranks that the others wait for, ascending; none while the observer itself had progress within ``timeout_s``.

    In this order, late are

    - those that were silent for half of ``timeout_s``: their processes are gone, stopped or hung;
    - those that are behind, see `ranks_behind`, if they had half of ``timeout_s`` without progress.

    It is longer in a ring of many hosts, whose notes are old: they may have had progress since.

    If all are in the same step it is slow everywhere: none is late.
    """
    own, half_s = seen.own, timeout_s / 2
    if own.idle_s < timeout_s:
        return []
    silence_s, patience_s = max(half_s, SILENT_TURNS * seen.turn_s), half_s + min(half_s, seen.turn_s)
    silent = sorted(rank for rank, seconds in seen.silent_s.items() if seconds >= silence_s and rank != own.rank)
    return silent or sorted(rank for rank in ranks_behind(seen) if seen.everyone[rank].idle_s >= patience_s)


def ranks_behind(seen: Observation) -> set[int]:
    """Those that the others wait for, if they wait. In this order:

    - those that have not come into this generation of the ring;
    - those that are behind: with the smallest count, if counts differ;
    - if all counts are equal, those that do something alone while others wait for them;
    - if all are at the same place, those that read: they wait for the storage, and not for each other.
    """
    own, everyone = seen.own, seen.everyone
    behind = {rank for rank, beat in everyone.items() if beat.generation < own.generation}
    if behind:
        return behind
    beats = {rank: beat for rank, beat in everyone.items() if beat.generation == own.generation}
    for place in (lambda beat: beat.count, lambda beat: not beat.alone):
        least = min(map(place, beats.values()))
        found = {rank for rank, beat in beats.items() if place(beat) == least}
        if found != beats.keys():
            return found
    return {rank for rank, beat in beats.items() if beat.phase.startswith(READING)}


LOOK_S = 5.0  # without progress, before a rank looks at the others
COMPUTING = 10  # times the timeout, for which a rank may compute without another sign of progress
LEAVING_S = 15.0  # for a late rank to leave an elastic ring


@dataclass(frozen=True)
class Timeouts:
    """How long a rank waits, in seconds.

    ``stall_s``: for progress anywhere; 0: without limit. ``verdict_s``: for the verdict of an observer of a lower rank.
    ``launcher_s``: for one answer of the launcher, which answers now and then even if it is busy. ``ending_s``: for the
    main thread to end the process, once the rank has announced its exit.
    """

    stall_s: float
    verdict_s: float = 5.0
    launcher_s: float = 10.0
    ending_s: float = 20.0

    @property
    def computing_s(self) -> float:
        """For how long CPU time is progress, within one phase of computing."""
        return COMPUTING * self.stall_s


class Stalls:
    """This rank's search for those that are late; ``goes_on`` returns True while there is time for it."""

    def __init__(
        self,
        host_notes: HostNotes,
        timeouts: Timeouts,
        goes_on: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host_notes, self._timeouts, self._goes_on, self._clock = host_notes, timeouts, goes_on, clock
        self._ring = -1, 0, -1  # rank, size and generation
        self._looks = False
        self._suspects_since = self._verdict_since = self._asks_at = self._checks_at = 0.0
        self._looks_since = self._looked = self._answered = clock()
        self.peers = Peers(host_notes, 0, 0, 0, clock)

    def verdict(self, own: Beat, log: str) -> Verdict | None:
        """Another rank's verdict, or this one's; None if there is none, and before the first phase.

        ``log`` is where this rank's log is.

        Raises OSError if the launcher did not answer for longer than any verdict takes.
        """
        if self._ring != (own.rank, own.size, own.generation):
            self._ring = own.rank, own.size, own.generation
            self.peers, self._looks = Peers(self._host_notes, *self._ring, self._clock), False
        patience_s = min(LOOK_S, self._timeouts.stall_s / 4)
        if own.size == 1 or own.count <= 0 or own.idle_s < self._begins_s(patience_s):
            self._looks = False
            return None
        now = self._clock()
        if not self._looks or now - self._looked > GAP_S:
            self._looks, self._suspects_since, self._verdict_since = True, 0.0, 0.0
            self._asks_at = self._checks_at = 0.0
            self._looks_since = self._answered = now
            self.peers.begin_to_look()
        self._looked = now
        try:
            found = self._found_verdict(own)
            seen = None if found is not None else self._observe(own)
            self._answered = now
        except OSError:
            is_silent = now - self._answered >= self._timeouts.launcher_s
            if own.idle_s >= self._timeouts.stall_s + self._timeouts.verdict_s and is_silent:
                raise
            return None
        late = find_late(seen, self._timeouts.stall_s) if seen is not None else []
        return self._judged(late, own, log) if late and now - self._looks_since >= patience_s else found

    def _begins_s(self, patience_s: float) -> float:
        """After how long without progress this rank looks at the others.

        In a ring of many hosts it is when all of them have reported that there is no progress.
        """
        if not self._host_notes.is_crowded:
            return patience_s
        return self._timeouts.stall_s / 2 + 2 * self._host_notes.delay_s

    def _found_verdict(self, own: Beat) -> Verdict | None:
        """Another rank's verdict; of each host one rank asks the store for it, in a ring of many hosts by turns."""
        now, every_s = self._clock(), 2 * self._host_notes.turn_s
        asks = self._host_notes.is_reporter
        if not self._host_notes.is_crowded:
            asks |= own.idle_s >= self._timeouts.stall_s  # the one that reports may be computing
        elif asks:
            self._asks_at = self._asks_at or now + every_s * own.rank / own.size
            asks = now >= self._asks_at
        found = self.peers.verdict(asks)
        if asks:
            self._asks_at = now + every_s
        return found

    def _observe(self, own: Beat) -> Observation | None:
        """What is known of all ranks; None if this rank does not observe them, or has not read all notes yet.

        In a ring of many hosts it takes many seconds to read them, and only one rank does so at a time.
        """
        peers, turn_s = self.peers, self._host_notes.turn_s
        if not observes(own.rank, own.size):
            return None
        if not self._host_notes.is_crowded:
            peers.look(self._goes_on)
            return Observation(own, peers.beats, peers.silent_s)
        silence_s = SILENT_TURNS * turn_s
        lower = [rank for rank in range(own.rank) if observes(rank, own.size)]
        if lower:
            if self._clock() >= self._checks_at:
                peers.look(self._goes_on, lower)
                self._checks_at = self._clock() + turn_s
            if any(peers.silent_s.get(rank, silence_s) < silence_s for rank in lower):
                return None
        requests = int(REQUESTS_PER_S * (1 if peers.rounds else 2))  # all hosts have just put their notes
        peers.look_on(self._goes_on, requests)
        if not peers.rounds:
            return None
        seen = Observation(own, peers.beats, peers.silent_s, turn_s)
        behind = {peers.hosts.get(rank, rank) for rank in ranks_behind(seen) - {own.rank}}
        if len(behind) > REQUESTS_PER_S:  # of the first round, or the storage's fault
            return seen
        peers.look(self._goes_on, behind)
        return Observation(own, peers.beats, peers.silent_s, turn_s)

    def is_over(self, verdict: Verdict) -> bool:
        """True if a late rank is still in this elastic ring when it should have left: then all end."""
        self._verdict_since = self._verdict_since or self._clock()
        if self._clock() - self._verdict_since < LEAVING_S:
            return False
        try:
            self.peers.look(self._goes_on, verdict.late)
        except OSError:
            return True
        pending = set(self.peers.without_exit_notice)
        return any(rank in pending and self.peers.silent_s[rank] < self._timeouts.verdict_s for rank in verdict.late)

    def await_exit_notices(self, ranks: tuple[int, ...], limit_s: float) -> None:
        """Give the late ranks time to log their stacks: the launcher ends them when this one has ended."""
        deadline = time.monotonic() + limit_s
        try:
            while time.monotonic() < deadline and set(ranks) & set(self.peers.without_exit_notice):
                self.peers.look(lambda: time.monotonic() < deadline, ranks)
                time.sleep(limit_s / 50)
        except OSError:
            pass

    def _judged(self, late: list[int], own: Beat, log: str) -> Verdict | None:
        """The verdict, if it is this rank's: the lowest one that is not late, or that waited for it in vain."""
        now = self._clock()
        self._suspects_since = self._suspects_since or now
        ended = [rank for rank, each in self.peers.exit_notices.items() if each.status == 0]
        observers = [rank for rank in range(own.size) if observes(rank, own.size) and rank not in ended]
        able = [rank for rank in observers if rank not in late] or observers
        if able[0] != own.rank and now - self._suspects_since < self._timeouts.verdict_s:
            return None
        note = self.peers.notes.get(late[0])
        its_log = log if late[0] == own.rank else (note.log if note else "")
        hint = f"--stall-timeout {self._timeouts.stall_s:g}" + (f"; its log: {its_log}" if its_log else "")
        line = f"{messages.late(own, late, self.peers.notes, self.peers.silent_s)}; all ranks end ({hint})"
        hosts = tuple(self.peers.hosts.get(rank, rank) for rank in late)
        verdict = Verdict(own.rank, tuple(late), f"{ERROR_PREFIX}{line}", hosts)
        try:
            if (found := self.peers.verdict()) is not None:  # another was faster
                return found
            self.peers.judge(verdict)
        except OSError:  # then the others come to it, too
            pass
        return verdict

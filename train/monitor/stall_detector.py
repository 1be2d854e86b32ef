"""Finds out, on each rank, that nothing gets on and which ranks are the reason; all ranks come to one verdict."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from train.monitor import messages
from train.monitor.heartbeat import READING, Beat
from train.monitor.kv_store import Letterbox
from train.monitor.peers import Peers, Verdict, observes


def late_ranks(own: Beat, beats: Mapping[int, Beat], silent_s: Mapping[int, float], timeout_s: float) -> list[int]:
    """The ranks that the others wait for, ascending; none while this rank (``own``) got on within ``timeout_s``.

    ``beats`` are the others' last ones, ``silent_s`` says for how many seconds of this rank's clock each other has not
    sent a new one. In this order, late are

    - those that were silent for half of ``timeout_s``: their processes are gone, stopped or hung;
    - those that have not come into this generation of the ring;
    - those that are behind: with the smallest count, where counts differ;
    - where all counts are equal, those that do something alone while others wait for them;
    - where all are at the same place, those that read: they wait for the storage, and not for each other.

    Of all but the silent only those that had half of ``timeout_s`` without progress. Where all are in
    the same step it is slow everywhere: nobody is late.
    """
    if own.idle_s < timeout_s:
        return []
    patience_s = timeout_s / 2
    silent = sorted(rank for rank, seconds in silent_s.items() if seconds >= patience_s and rank != own.rank)
    if silent:
        return silent
    everyone = {**beats, own.rank: own}
    behind = {rank for rank, beat in everyone.items() if beat.generation < own.generation}
    if not behind:
        behind = _hindmost({rank: beat for rank, beat in everyone.items() if beat.generation == own.generation})
    return sorted(rank for rank in behind if everyone[rank].idle_s >= patience_s)


def _hindmost(beats: Mapping[int, Beat]) -> set[int]:
    """Those behind all others; where all are at the same place those that read."""
    for place in (lambda beat: beat.count, lambda beat: not beat.alone):
        least = min(map(place, beats.values()))
        found = {rank for rank, beat in beats.items() if place(beat) == least}
        if found != beats.keys():
            return found
    return {rank for rank, beat in beats.items() if beat.phase.startswith(READING)}


LOOK_S = 5.0  # without progress, before a rank looks at the others
GAP_S = 5.0  # between two looks: where it was longer, this process stood still, and so perhaps did all
LEAVING_S = 15.0  # for a late rank to leave an elastic ring


@dataclass(frozen=True)
class Timeouts:
    """How long a rank waits, in seconds.

    ``stall_s``: for progress anywhere; 0 for ever. ``verdict_s``: for the verdict of an observer of a lower rank.
    ``launcher_s``: for one answer of the launcher, which answers now and then even if it is busy. ``ending_s``: for the
    main thread to end the process, once the rank has said farewell.
    """

    stall_s: float
    verdict_s: float = 5.0
    launcher_s: float = 10.0
    ending_s: float = 20.0


class Stalls:
    """This rank's search for those that are late; ``goes_on`` is asked now and then whether there is time for it."""

    def __init__(self, letterbox: Letterbox, timeouts: Timeouts, goes_on: Callable[[], bool]) -> None:
        self._letterbox, self._timeouts, self._goes_on = letterbox, timeouts, goes_on
        self._ring = -1, 0, -1  # rank, size and generation
        self._looks = False
        self._suspects_since = self._verdict_since = 0.0
        self._looks_since = self._looked = self._answered = time.monotonic()
        self.peers = Peers(letterbox, 0, 0, 0)

    def verdict(self, own: Beat, log: str) -> Verdict | None:
        """Another rank's verdict, or this one's; None where there is none, and before the first phase.

        ``log`` is where this rank's log is.

        Raises OSError where the launcher did not answer for longer than any verdict takes.
        """
        if self._ring != (own.rank, own.size, own.generation):
            self._ring = own.rank, own.size, own.generation
            self.peers, self._looks = Peers(self._letterbox, *self._ring), False
        patience_s = min(LOOK_S, self._timeouts.stall_s / 4)
        if own.size == 1 or own.count <= 0 or own.idle_s < patience_s:
            self._looks = False
            return None
        now = time.monotonic()
        if not self._looks or now - self._looked > GAP_S:
            self._looks, self._suspects_since, self._verdict_since = True, 0.0, 0.0
            self._looks_since = self._answered = now
            self.peers.begin_to_look()
        self._looked = now
        try:
            found = self.peers.verdict()
            if found is not None or not observes(own.rank, own.size):
                self._answered = now
                return found
            self.peers.look(self._goes_on)
            self._answered = now
        except OSError:
            is_silent = now - self._answered >= self._timeouts.launcher_s
            if own.idle_s >= self._timeouts.stall_s + self._timeouts.verdict_s and is_silent:
                raise
            return None
        late = late_ranks(own, self.peers.beats, self.peers.silent_s, self._timeouts.stall_s)
        return self._judged(late, own, log) if late and now - self._looks_since >= patience_s else None

    def is_over(self, verdict: Verdict) -> bool:
        """Whether a late rank is still in this elastic ring when it should have left: then all end after all."""
        self._verdict_since = self._verdict_since or time.monotonic()
        if time.monotonic() - self._verdict_since < LEAVING_S:
            return False
        try:
            self.peers.look(self._goes_on, verdict.late)
        except OSError:
            return True
        pending = set(self.peers.without_farewell)
        return any(rank in pending and self.peers.silent_s[rank] < self._timeouts.verdict_s for rank in verdict.late)

    def await_farewells(self, ranks: tuple[int, ...], limit_s: float) -> None:
        """Leave the late ranks time to write down where they are: the launcher ends them when this one has ended."""
        deadline = time.monotonic() + limit_s
        try:
            while time.monotonic() < deadline and set(ranks) & set(self.peers.without_farewell):
                self.peers.look(lambda: time.monotonic() < deadline, ranks)
                time.sleep(limit_s / 50)
        except OSError:
            pass

    def _judged(self, late: list[int], own: Beat, log: str) -> Verdict | None:
        """The verdict, if it is this rank's: the lowest one that is not late, or that waited for it in vain."""
        now = time.monotonic()
        self._suspects_since = self._suspects_since or now
        ended = [rank for rank, each in self.peers.farewells.items() if each.status == 0]
        observers = [rank for rank in range(own.size) if observes(rank, own.size) and rank not in ended]
        able = [rank for rank in observers if rank not in late] or observers
        if able[0] != own.rank and now - self._suspects_since < self._timeouts.verdict_s:
            return None
        note = self.peers.notes.get(late[0])
        its_log = log if late[0] == own.rank else (note.log if note else "")
        hint = f"--stall-timeout {self._timeouts.stall_s:g}" + (f"; its log: {its_log}" if its_log else "")
        line = f"{messages.late(own, late, self.peers.notes, self.peers.silent_s)}; all ranks end ({hint})"
        verdict = Verdict(own.rank, tuple(late), f"{messages.PREFIX}{line}")
        try:
            if (found := self.peers.verdict()) is not None:  # another was faster
                return found
            self.peers.judge(verdict)
        except OSError:  # then the others come to it, too
            pass
        return verdict

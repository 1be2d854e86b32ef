"""What a rank knows of the others of its ring, from their notes: who moves, who is silent, who has ended."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from train.monitor.heartbeat import OUT, Beat
from train.monitor.host_notes import HostNotes
from train.monitor.notes import ExitNotice, Note, Verdict

OBSERVERS = 8
AFTER_ALL = 2**62  # the count of a rank that is done: no rank waits for it


def observes(rank: int, size: int) -> bool:
    """True if this rank reads what all others have in the store, and reports what became of them.

    All do in a small ring. In a large one it is `OBSERVERS`, or some more, far apart, so not all on one host.
    """
    return rank % max(1, size // OBSERVERS) == 0


class Peers:
    """The other ranks of one generation, by their notes in the store; all by rank."""

    def __init__(
        self,
        host_notes: HostNotes,
        own: int,
        size: int,
        generation: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host_notes, self._clock, self._generation = host_notes, clock, generation
        self._own, self._others = own, [rank for rank in range(size) if rank != own]
        self._since = self._clock()
        self._seen: dict[int, tuple[int, float]] = {}  # the last beat's number, and when it was new
        self._changed: set[int] = set()
        self._left: list[int] = []  # of a round, descending
        self._covered: set[int] = set()  # in this round
        self.rounds = 0  # through all others, since this rank began to look
        self.hosts: dict[int, int] = {}  # the lowest rank of the host of each
        self.notes: dict[int, Note] = {}

    def look(self, goes_on: Callable[[], bool], ranks: Iterable[int] | None = None) -> None:
        """Read the notes of ``ranks`` (of all others), as long as ``goes_on`` returns True. Raises OSError."""
        left = sorted(self._others if ranks is None else ranks, reverse=True)
        self._read(left, self._read_local(), goes_on, math.inf)

    def look_on(self, goes_on: Callable[[], bool], requests: int) -> None:
        """Go on with a round through all others, with at most so many requests. Raises OSError."""
        if not self._left:
            self._left, self._covered = self._others[::-1], self._read_local()
        self._read(self._left, self._covered, goes_on, requests)
        self.rounds += not self._left

    def _read_local(self) -> set[int]:
        """Read the notes of this host's ranks; which they are."""
        local = self._host_notes.local(self._generation)
        ranks = {note.beat.rank for note in local}
        self._take(local, min(ranks, default=0))
        return ranks

    def _read(self, left: list[int], covered: set[int], goes_on: Callable[[], bool], requests: float) -> None:
        """Read the notes of the ranks that are ``left``, the last one first, unless they are ``covered``."""
        while left:
            rank = left[-1]
            if rank not in covered:
                if requests <= 0 or not goes_on():
                    return
                requests -= 1
                lowest = self.hosts.get(rank, rank)
                notes = self._host_notes.read(self._generation, lowest)
                covered.update(note.beat.rank for note in notes)
                self._take(notes, lowest)
                if rank not in covered:  # it has a note of its own by now, as one whose board took no more
                    self.hosts.pop(rank, None)
            left.pop()

    def _take(self, notes: Iterable[Note], lowest: int) -> None:
        now = self._clock()
        for note in notes:
            rank, before = note.beat.rank, self.notes.get(note.beat.rank)
            if rank == self._own or (before is not None and _is_newer(before, note)):
                continue
            self.notes[rank], self.hosts[rank] = note, lowest
            if before is None or before.beat.number != note.beat.number:
                self._seen[rank] = note.beat.number, now
                if before is not None:
                    self._changed.add(rank)

    def begin_to_look(self) -> None:
        """From now on silence counts, and what moves."""
        self._since = self._clock()
        self._seen.clear()
        self._changed.clear()
        self._left, self.rounds = [], 0

    @property
    def beats(self) -> dict[int, Beat]:
        """Their last beats; those of ranks that are done, or have left the ring, are ahead of all."""
        return {
            rank: replace(note.beat, count=AFTER_ALL, alone=False) if _is_ahead(note) else note.beat
            for rank, note in self.notes.items()
        }

    @property
    def silent_s(self) -> dict[int, float]:
        """Seconds since each other sent something new, as far as this rank has looked; without those that are done."""
        now = self._clock()
        pending = [rank for rank in self._others if not _is_done(self.notes.get(rank))]
        return {rank: now - max(self._since, self._seen.get(rank, (0, 0.0))[1]) for rank in pending}

    @property
    def silent(self) -> list[int]:
        """Those that have neither announced their exit nor moved since this rank began to look."""
        return [rank for rank in self.without_exit_notice if rank not in self._changed]

    @property
    def moving(self) -> list[int]:
        """Those that have moved since then, and have not announced their exit."""
        return [rank for rank in self.without_exit_notice if rank in self._changed]

    @property
    def without_exit_notice(self) -> list[int]:
        """The others that have not announced their exit, ascending."""
        return [rank for rank in self._others if rank not in self.exit_notices]

    @property
    def exit_notices(self) -> dict[int, ExitNotice]:
        """The exit notices of those that have announced their exit."""
        return {rank: note.exit_notice for rank, note in self.notes.items() if note.exit_notice is not None}

    def judge(self, verdict: Verdict) -> None:
        """Leave the verdict. Raises OSError."""
        self._host_notes.put_verdict(self._generation, verdict)

    def verdict(self, asks: bool = True) -> Verdict | None:
        """The verdict, if there is one, see `HostNotes.verdict`. Raises OSError."""
        found = self._host_notes.verdict(self._generation, asks)
        if found is not None:
            self.hosts.update(zip(found.late, found.hosts, strict=True))
        return found


def _is_newer(one: Note, other: Note) -> bool:
    """True if one note of a rank was written after another; an exit notice is the last, also if its guard puts it."""
    if (one.exit_notice is None) != (other.exit_notice is None):
        return one.exit_notice is not None
    return one.beat.number > other.beat.number


def _is_ahead(note: Note) -> bool:
    return _is_done(note) or note.beat.count == OUT


def _is_done(note: Note | None) -> bool:
    return note is not None and note.exit_notice is not None and note.exit_notice.status == 0

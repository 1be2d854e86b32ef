"""The store as one rank uses it: one note for each host, however many ranks the host has.

Each rank writes its note to the board of its host, and the lowest that is alive puts all of them into the store. The
launcher has one interpreter to answer with, so the hosts of a large ring take turns.
"""

import math
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from train.monitor.heartbeat import Beat
from train.monitor.host_board import HostBoard
from train.monitor.kv_store import KVStoreClient
from train.monitor.launcher import local_size
from train.monitor.notes import VERDICT, ExitNotice, Note, Verdict, host_note, key, notes_of, scope

BEAT_S = 1.0
REQUESTS_PER_S = 12.0  # of all hosts; the launcher needs 0.4 to 0.8 ms for each
FRESH_S, HURRIED_S = 3.5, 1.5  # age of a note on the board up to which its rank is alive: it writes one every second
SETTLING = 3  # attempts to put notes that change meanwhile


class HostNotes:
    """Puts this rank's note, and reads those of its host and of others.

    In a ring of many hosts each puts its note out of turn after ``stalled_s`` and `delay_s` without progress. Without
    a ``board`` this rank is a host of its own.
    """

    def __init__(
        self,
        store: KVStoreClient,
        board: HostBoard | None = None,
        stalled_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self._board, self._stalled_s, self._clock = store, board, stalled_s, clock
        self._generation = -1
        self._put_at = self._last_put = self._hurries_until = 0.0
        self._stored: dict[int, ExitNotice] = {}
        self._is_stalled = False
        self._is_alone = True  # of its host, as far as this rank knows
        self.is_reporter = True
        self.turn_s = BEAT_S  # between two notes of a host

    @property
    def is_crowded(self) -> bool:
        """True if there are so many hosts that they take turns."""
        return self.turn_s > BEAT_S

    @property
    def delay_s(self) -> float:
        """How much longer everything takes for the hosts' turns: notes in the store are as old."""
        return min(self.turn_s, self._stalled_s) if self.is_crowded else 0.0

    def put(self, note: Note, at_once: bool = False) -> None:
        """Write ``note`` on the board; put the host's into the store, if this rank does so and it is time.

        The store has it ``at_once`` if that is set. Raises OSError if the store does not take it.
        """
        self._write(note)
        local = self._local_ranks(note.beat)
        self.turn_s = max(BEAT_S, _hosts(note.beat.size, len(local)) / REQUESTS_PER_S)
        self.is_reporter = not any(self._lives(note.beat, rank) for rank in local[: bisect_left(local, note.beat.rank)])
        if not at_once and not self.is_reporter:
            self._is_alone = False
            return
        notes = self._with_local(note)
        self._is_alone = len(notes) == 1
        if not at_once and not self._is_due(note, notes):
            return
        for _ in range(SETTLING):
            self._stored = _exit_notices(notes)
            self.store.put(scope(note.beat.generation), key(min(notes)), host_note(notes.values()))
            notes = self._with_local(note)
            if self._board is None or _exit_notices(notes) == self._stored:  # else another may have put an older one
                return

    def hurry(self, seconds: float) -> None:
        """For so long put the host's note every second: a rank is gone, perhaps the one that put it."""
        self._hurries_until = self._clock() + seconds

    def local(self, generation: int) -> list[Note]:
        """The notes of this host's ranks, as far as the board has them."""
        if self._board is None:
            return []
        try:
            found = [self._board.get(name) for name in self._board.names(f"{generation}-")]
        except OSError:
            return []
        notes = [Note.from_json(each) for each in found if each is not None]
        return [note for note in notes if note is not None]

    def read(self, generation: int, lowest: int) -> list[Note]:
        """The notes of the host whose lowest rank this is. Raises OSError."""
        return notes_of(self.store.get(scope(generation), key(lowest)))

    def put_verdict(self, generation: int, verdict: Verdict) -> None:
        """Leave the verdict for all. Raises OSError."""
        self.store.put(scope(generation), VERDICT, asdict(verdict))

    def verdict(self, generation: int, asks: bool) -> Verdict | None:
        """The verdict, if there is one: that on the board, and if this rank ``asks``, that in the store.

        Raises OSError.
        """
        found = None if self._board is None else self._board.get(f"{VERDICT}-{generation}")
        if found is None and asks:
            found = self.store.get(scope(generation), VERDICT)
            if found is not None and self._board is not None:
                with suppress(OSError):
                    self._board.put(f"{VERDICT}-{generation}", found)
        return None if found is None else Verdict.from_json(found)

    def exit_messages(self, note: Note) -> dict[str, Any]:
        """For another process that is to put ``note`` for this rank: a file of the board, and a place in the store."""
        if self._board is None or self._is_alone:
            path = self.store.path_of(scope(note.beat.generation), key(note.beat.rank))
            place = {"host": self.store.host, "port": self.store.port, "path": path, "body": host_note([note])}
        else:  # others of this host put it there
            place = None
        file = None if self._board is None else str(self._board.path(_name(note)))
        return {"file": file, "body": {"at": 0, "note": asdict(note)}, "store": place}

    def close(self) -> None:
        """This rank is about to end."""
        board, self._board = self._board, None
        if board is not None:
            board.close()

    def _write(self, note: Note) -> None:
        if self._board is None:
            return
        try:
            self._board.put(_name(note), asdict(note))
        except OSError:  # the memory is full: this rank is a host of its own from now on
            self._board.path(_name(note)).unlink(missing_ok=True)
            self.close()

    def _local_ranks(self, own: Beat) -> list[int]:
        """The ranks of this host, ascending."""
        prefix = f"{own.generation}-"
        ranks = {own.rank}
        if self._board is not None:
            with suppress(OSError):
                ranks |= {int(name.removeprefix(prefix)) for name in self._board.names(prefix)}
        return sorted(ranks)

    def _lives(self, own: Beat, rank: int) -> bool:
        """True if another rank of this host writes notes, and has not announced its exit."""
        max_age_s = HURRIED_S if self._clock() < self._hurries_until else FRESH_S
        found = None if self._board is None else self._board.get(f"{own.generation}-{rank}", max_age_s)
        return found is not None and found["exit_notice"] is None

    def _with_local(self, own: Note) -> dict[int, Note]:
        """This host's notes by rank, ascending."""
        notes = {note.beat.rank: note for note in self.local(own.beat.generation)} | {own.beat.rank: own}
        return dict(sorted(notes.items()))

    def _is_due(self, own: Note, notes: Mapping[int, Note]) -> bool:
        """True if this host has something new, or it is its turn; the turns begin one after the other."""
        now, beat = self._clock(), own.beat
        place = min(notes) / beat.size if self.is_crowded else 0.0
        if beat.generation != self._generation:
            self._generation, self._put_at = beat.generation, now + place * self.turn_s
        self._put_at = min(self._put_at, now + self.turn_s)  # turns are long until this host's ranks are all there
        was_stalled, self._is_stalled = self._is_stalled, beat.idle_s >= self._stalled_s + self.delay_s
        if self._is_stalled and not was_stalled:
            self._put_at = min(self._put_at, now + place * self.delay_s)
        due_at = min(self._put_at, self._last_put + BEAT_S) if now < self._hurries_until else self._put_at
        if _exit_notices(notes) == self._stored and now < due_at:
            return False
        self._last_put, self._put_at = now, now + self.turn_s - BEAT_S / 2
        return True


def _hosts(size: int, local: int) -> int:
    """How many hosts there are, of which this one has so many ranks."""
    if local < local_size():  # its ranks do not share a board
        return math.ceil(size / local)
    return min(int(os.environ.get("HOROVOD_CROSS_SIZE", str(size))), math.ceil(size / local))


def _exit_notices(notes: Mapping[int, Note]) -> dict[int, ExitNotice]:
    return {rank: note.exit_notice for rank, note in notes.items() if note.exit_notice is not None}


def _name(note: Note) -> str:
    return f"{note.beat.generation}-{note.beat.rank}"

"""What a rank knows of the others: their last heartbeats, and the words that those who ended have left.

Each rank has one note in the launcher's store: its last beat, where its log is and, at its end, its farewell. One more
note, the verdict, is that of the first rank that found another late.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from train.monitor.heartbeat import OUT, Beat
from train.monitor.kv_store import Letterbox

VERDICT = "verdict"
OBSERVERS = 8
AFTER_ALL = 2**62  # the count of a rank that is done: nobody waits for it


@dataclass(frozen=True)
class Farewell:
    """How a rank ends: with ``status``, and ``line`` that it prints; an empty one where another tells."""

    status: int
    line: str = ""

    @property
    def is_cause(self) -> bool:
        """Whether this rank failed by itself, and has told so."""
        return bool(self.line)


@dataclass(frozen=True)
class Note:
    """What a rank has in the store."""

    beat: Beat
    log: str = ""
    farewell: Farewell | None = None

    def as_json(self) -> dict[str, Any]:
        farewell = None if self.farewell is None else asdict(self.farewell)
        return {"beat": self.beat.as_json(), "log": self.log, "farewell": farewell}

    def put_into(self, letterbox: Letterbox) -> None:
        """Put it where the other ranks look for it. Raises OSError."""
        letterbox.put(scope(self.beat.generation), key(self.beat.rank), self.as_json())


@dataclass(frozen=True)
class Verdict:
    """These ranks are late, and ``line`` says so; ``judge`` is the rank that tells it."""

    judge: int
    late: tuple[int, ...]
    line: str


def scope(generation: int) -> str:
    """That of all notes of one generation of the ring."""
    return f"ringslice-{generation}"


def key(rank: int) -> str:
    """That of a rank's note."""
    return f"beat-{rank}"


def observes(rank: int, size: int) -> bool:
    """Whether this rank reads what all others have in the store, and tells what became of them.

    All do in a small ring. In a large one it is `OBSERVERS`, or some more, far apart: they are not of one host, and the
    launcher has only one interpreter to answer with.
    """
    return rank % max(1, size // OBSERVERS) == 0


class Peers:
    """The other ranks of one generation, as the store tells of them; all by rank."""

    def __init__(self, letterbox: Letterbox, own: int, size: int, generation: int) -> None:
        self._letterbox, self._scope = letterbox, scope(generation)
        self._others = [rank for rank in range(size) if rank != own]
        self._since = time.monotonic()
        self._seen: dict[int, tuple[int, float]] = {}  # the last beat's number, and when it was new
        self._changed: set[int] = set()
        self.notes: dict[int, Note] = {}

    def look(self, goes_on: Callable[[], bool], ranks: Iterable[int] | None = None) -> None:
        """Read the notes of ``ranks`` (of all others), as long as ``goes_on`` says so. Raises OSError."""
        for rank in self._others if ranks is None else ranks:
            if not goes_on():
                return
            note = _parsed(self._letterbox.get(self._scope, key(rank)))
            if note is None:
                continue
            now, before = time.monotonic(), self.notes.get(rank)
            self.notes[rank] = note
            if before is None or before.beat.number != note.beat.number:
                self._seen[rank] = note.beat.number, now
                if before is not None:
                    self._changed.add(rank)

    def begin_to_look(self) -> None:
        """From now on silence counts, and what moves."""
        self._since = time.monotonic()
        self._seen.clear()
        self._changed.clear()

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
        now = time.monotonic()
        pending = [rank for rank in self._others if not _is_done(self.notes.get(rank))]
        return {rank: now - max(self._since, self._seen.get(rank, (0, 0.0))[1]) for rank in pending}

    @property
    def silent(self) -> list[int]:
        """Those that have neither said farewell nor moved since this rank began to look."""
        return [rank for rank in self.without_farewell if rank not in self._changed]

    @property
    def moving(self) -> list[int]:
        """Those that have moved since then, and have not said farewell."""
        return [rank for rank in self.without_farewell if rank in self._changed]

    @property
    def without_farewell(self) -> list[int]:
        return [rank for rank in self._others if rank not in self.farewells]

    @property
    def farewells(self) -> dict[int, Farewell]:
        return {rank: note.farewell for rank, note in self.notes.items() if note.farewell is not None}

    def judge(self, verdict: Verdict) -> None:
        """Leave the verdict. Raises OSError."""
        self._letterbox.put(self._scope, VERDICT, asdict(verdict))

    def verdict(self) -> Verdict | None:
        """The verdict, if there is one. Raises OSError."""
        found = self._letterbox.get(self._scope, VERDICT)
        return None if found is None else Verdict(found["judge"], tuple(found["late"]), found["line"])


def _is_ahead(note: Note) -> bool:
    return _is_done(note) or note.beat.count == OUT


def _is_done(note: Note | None) -> bool:
    return note is not None and note.farewell is not None and note.farewell.status == 0


def _parsed(found: dict[str, Any] | None) -> Note | None:
    """The note; None where there is none, or one that is not ours."""
    if found is None:
        return None
    try:
        farewell = found["farewell"]
        return Note(Beat.from_json(found["beat"]), found["log"], None if farewell is None else Farewell(**farewell))
    except (KeyError, TypeError):
        return None

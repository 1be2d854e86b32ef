"""What ranks leave in the launcher's store for each other, as JSON.

The ranks of a host have one note there together: of each its last beat, the place of its log and, at the end, its
exit notice.
One more note, the verdict, is that of the first rank that found another late.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from train.monitor.heartbeat import Beat
from train.monitor.kv_store import KVStoreClient

VERDICT = "verdict"


@dataclass(frozen=True)
class ExitNotice:
    """How a rank ends: with ``status``, and ``line`` that it prints; an empty one if another rank reports."""

    status: int
    line: str = ""

    @property
    def is_cause(self) -> bool:
        """True if this rank failed by itself, and has reported it."""
        return bool(self.line)


@dataclass(frozen=True)
class Note:
    """What a rank reports of itself."""

    beat: Beat
    log: str = ""
    exit_notice: ExitNotice | None = None

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """The note that `asdict` gave; None for another value."""
        try:
            exit_notice = value["exit_notice"]
            ending = None if exit_notice is None else ExitNotice(**exit_notice)
            return cls(Beat(**value["beat"]), value["log"], ending)
        except (KeyError, TypeError):
            return None

    def put_into(self, client: KVStoreClient) -> None:
        """Put it into the store, as that of a host with this rank alone. Raises OSError."""
        client.put(scope(self.beat.generation), key(self.beat.rank), host_note([self]))


@dataclass(frozen=True)
class Verdict:
    """These ranks are late; ``line`` is the message, ``judge`` the rank that prints it.

    The notes of the late ranks are with those of the ``hosts``, see `key`.
    """

    judge: int
    late: tuple[int, ...]
    line: str
    hosts: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The verdict that `asdict` gave. Raises KeyError or TypeError for another value."""
        return cls(value["judge"], tuple(value["late"]), value["line"], tuple(value["hosts"]))


def scope(generation: int) -> str:
    """That of all notes of one generation of the ring."""
    return f"ringslice-{generation}"


def key(lowest: int) -> str:
    """That of the note of the host whose lowest rank this is."""
    return f"beat-{lowest}"


def host_note(notes: Iterable[Note]) -> dict[str, Any]:
    """The note of a host that has these ranks."""
    return {"ranks": [asdict(note) for note in notes]}


def notes_of(found: Mapping[str, Any] | None) -> list[Note]:
    """The notes of a host's ranks; none of another value."""
    ranks = (found or {}).get("ranks")
    notes = [Note.from_json(each) for each in ranks] if isinstance(ranks, list) else []
    return [note for note in notes if note is not None]

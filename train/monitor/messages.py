"""The message when ranks end, and which rank prints it: one line, by one rank. Pure: by the ranks' notes alone."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from etl.errors import EnvironmentFailure
from train.monitor.heartbeat import Beat
from train.monitor.notes import ExitNotice, Note
from train.monitor.peers import observes

MAX_NUMBERS = 20  # of ranks in a line
MAX_CHARACTERS = 200  # of the first line of an error of a framework


class PeerLost(EnvironmentFailure):
    """Another rank has ended in the middle of things. Its message is complete: it needs no prefix.

    ``ends_all`` is set if it ended because of bad data or wrong use, which any other rank would meet too.
    """

    ends_all = False


@dataclass(frozen=True)
class LostRank:
    """A rank that is gone: ``status`` and ``line`` are its exit notice's, None and "" if it died without one.

    ``host`` and ``where`` are empty if it had not sent a beat.
    """

    rank: int
    host: str
    where: str
    status: int | None
    line: str

    @property
    def died(self) -> bool:
        """True if it is gone without an exit notice."""
        return self.status is None


def find_lost(notes: Mapping[int, Note], silent: Collection[int]) -> list[LostRank]:
    """The ranks that failed and reported it; if there are none, those that are ``silent``, else those that left."""
    lost = []
    for rank in sorted({*notes, *silent}):
        note = notes.get(rank)
        exit_notice = (note and note.exit_notice) or ExitNotice(0)
        if rank in silent or exit_notice.status:
            status = None if rank in silent else exit_notice.status
            host, where = (note.beat.host, in_words(note.beat)) if note else ("", "")
            lost.append(LostRank(rank, host, where, status, exit_notice.line))
    causes = [each for each in lost if each.line]
    dead = [each for each in lost if each.died]
    return causes or dead or lost


def leaving(exit_notices: Mapping[int, ExitNotice], size: int) -> list[int]:
    """Of the observers those that end because of another: neither its cause nor done. The lowest of them reports."""
    ending = (rank for rank, each in exit_notices.items() if each.status and not each.is_cause)
    return sorted(rank for rank in ending if observes(rank, size))


def died(lost: Sequence[LostRank], remedy: str) -> str:
    """The line on ranks that died without a word; of several the first is named in full."""
    first = lost[0]
    who = f"rank {first.rank} on {first.host}" if first.host else f"rank {first.rank}"
    return f"{who} was killed or died without a word {first.where or 'at its start'}{_others(lost)}; {remedy}"


def late(own: Beat, ranks: Sequence[int], notes: Mapping[int, Note], silent_s: Mapping[int, float]) -> str:
    """Which ranks are late, and where the first of them is; ``own`` is the beat of the rank that reports it."""
    first = ranks[0]
    note = Note(own) if first == own.rank else notes.get(first)
    beat = None if note is None else note.beat
    others = f" (so are ranks {_numbers(ranks[1:])})" if ranks[1:] else ""
    if beat is None:
        return f"rank {first} is late{others}: it has sent no heartbeat for {silent_s.get(first, 0):.0f} s"
    if silent_s.get(first, 0) > beat.idle_s:
        return f"{beat.rank_name} is late{others}: silent for {silent_s[first]:.0f} s, last seen {in_words(beat)}"
    return f"{beat.rank_name} is late{others}: {beat.where}, without progress for {beat.idle_s:.0f} s"


def unreachable(own: Beat, error: OSError) -> str:
    """Why a rank ends that cannot read the others' notes."""
    return (
        f"{own.rank_name} got no further for {own.idle_s:.0f} s ({own.where}), and horovodrun's launcher, through which"
        f" the ranks exchange heartbeats, does not answer ({error}); this rank ends"
    )


def prefix_of(beat: Beat, is_ranked: bool) -> str:
    """The rank and its position, before a line of its own: "rank 2 on host1, epoch 1, step 14 (reading ...): "."""
    when = f"{beat.when} ({beat.doing})" if beat.when else ""
    prefix = ", ".join(part for part in (beat.rank_name if is_ranked else "", when) if part)
    return f"{prefix}: " if prefix else ""


def without_rank(message: str) -> str:
    """A message without the prefix of `prefix_of`, if it names a rank."""
    return re.sub(r"^rank \d+ on [^:]*: ", "", message)


def in_words(beat: Beat) -> str:
    """Where it is, after "was killed" or "stopped"."""
    return f"in {beat.where}" if beat.when else f"while {beat.doing}"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, which may be long; empty if there is none."""
    return next(iter(str(error).splitlines()), "")[:MAX_CHARACTERS]


def _others(lost: Sequence[LostRank]) -> str:
    return f" (and ranks {_numbers([each.rank for each in lost[1:]])})" if lost[1:] else ""


def _numbers(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - MAX_NUMBERS:,} more" if len(ranks) > MAX_NUMBERS else ""
    return ", ".join(map(str, ranks[:MAX_NUMBERS])) + more

"""Who is late, where nothing gets on any more: decided from heartbeats alone."""

from collections.abc import Mapping

from train.pulse import READING, Beat


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

"""Who is late, as arithmetic."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.lib.ranks.beats import beat
from train.monitor.heartbeat import READING, Beat
from train.monitor.stall_detector import Observation, find_late

TIMEOUT_S = 40.0
PATIENCE_S = TIMEOUT_S / 2
STEPPING = "stepping"
Rings = tuple[list[Beat], dict[int, float]]


@st.composite
def rings(draw: st.DrawFn) -> Rings:
    """The beats of all ranks, and for how long each was silent."""
    size = draw(st.integers(2, 6))
    beats = [
        replace(
            beat(rank),
            size=size,
            count=draw(st.integers(5, 8)),
            alone=draw(st.booleans()),
            phase=draw(st.sampled_from([READING, STEPPING])),
            idle_s=draw(st.floats(0, 100)),
            generation=draw(st.sampled_from([2, 2, 2, 1])),
        )
        for rank in range(size)
    ]
    return beats, {rank: draw(st.sampled_from([0.0, 1.0, PATIENCE_S, 60.0])) for rank in range(size)}


def judged(ring: Rings, own: int) -> list[int]:
    beats, silent_s = ring
    others = {each.rank: each for each in beats if each.rank != own}
    return find_late(Observation(beats[own], others, silent_s), TIMEOUT_S)


@given(rings(), st.integers(0, 5))
def test_nobody_is_late_while_the_observer_gets_on(ring: Rings, own: int) -> None:
    own %= len(ring[0])
    ring[0][own] = replace(ring[0][own], idle_s=TIMEOUT_S - 0.1)
    assert judged(ring, own) == []


@given(rings(), st.integers(0, 5))
def test_the_late_are_silent_or_idle_and_where_all_are_at_one_place_they_read(ring: Rings, own: int) -> None:
    beats, silent_s = ring
    own %= len(beats)
    late = judged(ring, own)
    assert late == sorted(set(late))
    silent = [rank for rank in silent_s if rank != own and silent_s[rank] >= PATIENCE_S]
    if silent and beats[own].idle_s >= TIMEOUT_S:
        assert late == silent
        return
    assert all(beats[rank].idle_s >= PATIENCE_S for rank in late)
    if beats[own].idle_s >= TIMEOUT_S and len({(each.count, each.alone, each.generation) for each in beats}) == 1:
        assert late == [each.rank for each in beats if each.phase == READING and each.idle_s >= PATIENCE_S]


@given(st.integers(2, 6), st.data())
def test_of_ranks_that_hang_all_name_the_same(size: int, data: st.DataObject) -> None:
    """Where nothing at all gets on, every observer comes to the same, whatever the counts and phases."""
    counts = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    phases = data.draw(st.lists(st.sampled_from([READING, STEPPING]), min_size=size, max_size=size))
    places = enumerate(zip(counts, phases, strict=True))
    beats = [beat(rank, size=size, count=count, phase=phase) for rank, (count, phase) in places]
    ring = beats, dict.fromkeys(range(size), 0.0)
    if min(counts) == max(counts):
        expected = [rank for rank, phase in enumerate(phases) if phase == READING]
    else:
        expected = [rank for rank, count in enumerate(counts) if count == min(counts)]
    assert all(judged(ring, own) == expected for own in range(size))


def test_at_one_place_those_that_do_something_alone_are_waited_for() -> None:
    loading = beat(0, alone=True, phase="loading the checkpoint")
    beats = [loading, *(beat(rank, phase="waiting for rank 0") for rank in (1, 2, 3))]
    assert judged((beats, {}), 1) == judged((beats, {}), 0) == [0]
    assert judged(([replace(each, alone=True) for each in beats], {}), 1) == []
    beats[0] = replace(beats[0], idle_s=1.0)  # it loads, and gets on
    assert judged((beats, {}), 1) == []


def test_who_has_not_come_back_into_the_ring_is_late() -> None:
    beats = [beat(0, generation=2), beat(1, generation=2), beat(2, generation=1, count=99), beat(3, generation=2)]
    assert judged((beats, {}), 0) == [2]

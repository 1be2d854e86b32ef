"""Who is late, as arithmetic and in simulated time: no alarm while ranks get on, and one in time once one does not."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from tests.lib.ranks.simulated_ring import MEET, TIMEOUTS, Action, Script, SimulatedRing, beat, training
from tests.train.monitor.conftest import Clock
from train.monitor.heartbeat import GAP_S, OUT, READING, Beat, Status
from train.monitor.notes import Verdict
from train.monitor.stall_detector import Observation, Timeouts, find_late

SLICE = "train-00003-of-00008"


def test_it_reports_its_position() -> None:
    status = Status()
    assert status.beat().where == "starting"
    status.phase(READING, epoch=2, step=13)
    status.progress(SLICE, 1_234_567)
    assert status.beat().where == f"epoch 2, step 13, reading {SLICE} at offset 1,234,567"
    status.phase("stepping")
    assert status.beat().where == f"epoch 2, step 13, stepping, its reader at {SLICE} at offset 1,234,567"
    status.phase("evaluating", epoch=2)
    assert status.beat().when == "epoch 2, step 13"
    status.phase("evaluating", epoch=3)
    assert status.beat().when == "epoch 3"


def test_only_what_all_ranks_of_a_ring_go_through_is_counted() -> None:
    status = Status()
    status.phase("reading")
    status.local_phase("loading the checkpoint")
    status.progress()
    assert (status.beat().count, status.beat().alone) == (1, True)
    status.phase("stepping")
    assert (status.beat().count, status.beat().alone) == (2, False)
    status.left()
    status.phase("reading")
    assert status.beat().count == OUT
    status.joined(3, 4, generation=1)
    beat = status.beat()
    assert (beat.rank, beat.size, beat.generation, beat.count) == (3, 4, 1, 0)


def test_many_threads_lose_no_count_and_no_beat() -> None:
    status = Status()

    def work(thread: int) -> list[int]:
        numbers = []
        for step in range(500):
            status.phase(READING, thread, step)
            numbers.append(status.beat().number)
        return numbers

    with ThreadPoolExecutor(8) as pool:
        numbers = [number for own in pool.map(work, range(8)) for number in own]
    assert len(set(numbers)) == 4000
    assert status.beat().count == 4000
    assert status.beat().number >= time.monotonic_ns() // 1_000_000 - 60_000  # a guard's, put meanwhile, is older


TIMEOUT_S, STEPPING = 40.0, "stepping"
IDLE = [beat(rank) for rank in range(4)]  # all at one place, without progress for longer than that


def changed(rank: int, **fields: object) -> list[Beat]:
    """`IDLE`, stepping, but for this rank."""
    return [replace(each, phase=STEPPING, **fields if each.rank == rank else {}) for each in IDLE]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("beats", "silent_s", "expected"),
    [
        (changed(2, count=9), {}, [2]),
        (changed(2, count=9, idle_s=19.9), {}, []),  # it gets on
        (changed(0, count=9, idle_s=39.9), {}, []),  # the observer itself gets on
        (changed(2, count=9), {3: 20.0, 1: 19.9}, [3]),  # it may be dead
        (changed(2, alone=True), {}, [2]),  # the others wait for it
        (changed(2, generation=-1, count=99), {}, [2]),  # it has not come back into the ring
        (changed(2), {}, []),  # the step is slow everywhere
        (IDLE, {}, [0, 1, 2, 3]),  # so is the storage
        ([replace(each, count=each.rank // 2) for each in IDLE], {}, [0, 1]),
        ([replace(each, alone=True, phase=STEPPING) for each in IDLE], {}, []),
    ],
)
def test_late_is_for_whom_the_others_wait(beats: list[Beat], silent_s: dict[int, float], expected: list[int]) -> None:
    others = {each.rank: each for each in beats[1:]}
    assert find_late(Observation(beats[0], others, silent_s), TIMEOUT_S) == expected


RUNS, LIMIT_S = 10, 4000.0


def run_slowly(seed: int) -> Verdict | None:
    """A training with slow builds, steps, evaluations and checkpoints, and pauses of the whole machine."""
    chance = random.Random(seed)
    pauses = tuple((at, chance.uniform(10, 300)) for at in sorted(chance.uniform(5, 250) for _ in range(2)))
    return SimulatedRing(partial(training, seed, None)).run(LIMIT_S, pauses)


def test_slow_runs_raise_no_alarm_but_do_without_samples_of_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latter is the negative control."""
    alarms = {seed: verdict.line for seed in range(RUNS) if (verdict := run_slowly(seed)) is not None}
    assert alarms == {}
    monkeypatch.setattr(Status, "sample", lambda status, limit_s: None)
    assert sum(run_slowly(seed) is not None for seed in range(RUNS)) > RUNS / 2


@pytest.mark.parametrize("phase", ["building the model", READING, f"{READING} test", "evaluating test"])
def test_a_rank_that_hangs_is_named_in_time(phase: str) -> None:
    for rank in range(3):
        ring = SimulatedRing(partial(training, rank, (rank, phase)))
        verdict = ring.run(LIMIT_S)
        assert verdict is not None
        assert verdict.late == (rank,)
        idle_s = ring.ranks[rank].status.beat().idle_s
        others_wait_s = min(each.status.beat().idle_s for each in ring.ranks)
        assert TIMEOUTS.stall_s <= idle_s
        assert others_wait_s <= TIMEOUTS.stall_s + TIMEOUTS.verdict_s + 2


def test_on_many_hosts_slow_runs_raise_no_alarm_and_a_rank_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many ranks, each on a host of its own, that their turn comes every 20 s."""
    for module in ("host_notes", "stall_detector"):
        monkeypatch.setattr(f"train.monitor.{module}.REQUESTS_PER_S", 1.0)
    for seed in range(2):
        assert SimulatedRing(partial(training, seed, None), 20).run(LIMIT_S, ((50, 100), (200, 30))) is None
    ring = SimulatedRing(partial(training, 1, (13, READING)), 20)
    verdict = ring.run(LIMIT_S)
    assert verdict is not None
    assert verdict.late == (13,)
    assert min(each.status.beat().idle_s for each in ring.ranks) <= 4.5 * TIMEOUTS.stall_s


@pytest.mark.chaos
def test_of_4096_ranks_the_one_that_hangs_is_named_and_the_launcher_has_few_requests() -> None:
    """On 512 hosts, after 20 steps."""
    late, stall_s = 2563, 45
    hangs: list[tuple[float, int]] = []  # when it does, and the requests until then

    def script(status: Status, rank: int) -> Script:
        for step in count(1):
            status.phase(READING, 1, step)
            if rank == late and step > 20:
                hangs.append((ring.now, ring.store.requests))
                yield Action(1e9)
            yield Action(2)
            status.phase("stepping")
            yield MEET

    ring = SimulatedRing(script, 4096, 8, Timeouts(stall_s))
    begun = ring.now
    verdict = ring.run(LIMIT_S)
    assert verdict is not None
    assert verdict.late == (late,)
    [(at, requests)] = hangs
    assert ring.now - at <= 2.1 * stall_s
    assert requests / (at - begun) < 12
    assert (ring.store.requests - requests) / (ring.now - at) < 20


def test_cpu_time_is_progress_in_phases_of_computing_only(clock: Clock) -> None:
    status = Status(clock, lambda: clock.cpu_s)

    def idle_after(seconds: int, cores: float) -> float:
        for _ in range(seconds):
            clock.now += 1
            clock.cpu_s += cores
            status.sample(limit_s=100)
        return status.beat().idle_s

    status.local_phase("building the model")
    assert idle_after(50, cores=0.3) == 0
    assert idle_after(20, cores=0.2) == 20
    assert idle_after(10, cores=1) == 0
    assert idle_after(40, cores=1) == 21  # 100 s after its begin it is taken for a loop without an end
    for begin, phase in (
        (status.phase, READING),
        (status.local_phase, f"{READING} test"),
        (status.phase, "waiting for rank 0"),
    ):
        begin(phase)
        assert idle_after(20, cores=1) == 20
    status.phase(READING)
    for _ in range(200):  # of a rank that no other one watches: it decodes
        clock.now, clock.cpu_s = clock.now + 1, clock.cpu_s + 1
        status.sample(limit_s=100, is_watched=False)
    assert status.beat().idle_s == 0


def test_time_in_which_the_process_stood_still_is_not_idle(clock: Clock) -> None:
    status = Status(clock, lambda: clock.cpu_s)
    status.phase(READING)
    for seconds, idle_s in ((1, 1), (1, 2), (300, 2), (1, 3), (GAP_S, 3 + GAP_S)):
        clock.now += seconds
        status.sample(100)
        assert status.beat().idle_s == idle_s

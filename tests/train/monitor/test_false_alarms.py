"""No alarm while ranks get on, however slowly; and an alarm in time once one does not."""

import random

import pytest

from tests.lib.ranks.simulated_ring import TIMEOUTS, SimulatedRing, Training
from tests.train.monitor.conftest import Clock
from train.monitor.heartbeat import GAP_S, READING, Status
from train.monitor.notes import Verdict

RUNS, LIMIT_S = 20, 4000.0
HANGS = ("building the model", READING, f"{READING} test", "evaluating test")


def run_slowly(seed: int) -> Verdict | None:
    """A training with slow builds, steps, evaluations and checkpoints, and pauses of the whole machine."""
    chance = random.Random(seed)
    pauses = tuple((at, chance.uniform(10, 300)) for at in sorted(chance.uniform(5, 250) for _ in range(2)))
    return SimulatedRing(Training(seed)).run(LIMIT_S, pauses)


def test_slow_runs_raise_no_alarm() -> None:
    alarms = {seed: verdict.line for seed in range(RUNS) if (verdict := run_slowly(seed)) is not None}
    assert alarms == {}


def test_without_samples_of_cpu_time_the_same_runs_raise_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(Status, "sample", lambda status, limit_s: None)
    assert sum(run_slowly(seed) is not None for seed in range(RUNS)) > RUNS / 2


@pytest.mark.parametrize("phase", HANGS)
def test_a_rank_that_hangs_is_named_in_time(phase: str) -> None:
    for rank in range(3):
        ring = SimulatedRing(Training(rank, (rank, phase)))
        verdict = ring.run(LIMIT_S)
        assert verdict is not None
        assert verdict.late == (rank,)
        idle_s = ring.ranks[rank].status.beat().idle_s
        others_wait_s = min(each.status.beat().idle_s for each in ring.ranks)
        assert TIMEOUTS.stall_s <= idle_s
        assert others_wait_s <= TIMEOUTS.stall_s + TIMEOUTS.verdict_s + 2


@pytest.fixture
def many_hosts(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many ranks, each on a host of its own, that their turn comes every 20 s."""
    for module in ("host_notes", "stall_detector"):
        monkeypatch.setattr(f"train.monitor.{module}.REQUESTS_PER_S", 1.0)
    return 20


def test_slow_runs_on_many_hosts_raise_no_alarm(many_hosts: int) -> None:
    for seed in range(4):
        assert SimulatedRing(Training(seed), many_hosts).run(LIMIT_S, ((50, 100), (200, 30))) is None


def test_on_many_hosts_a_rank_that_hangs_is_named(many_hosts: int) -> None:
    ring = SimulatedRing(Training(1, (13, READING)), many_hosts)
    verdict = ring.run(LIMIT_S)
    assert verdict is not None
    assert verdict.late == (13,)
    assert min(each.status.beat().idle_s for each in ring.ranks) <= 4.5 * TIMEOUTS.stall_s


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


def test_time_in_which_the_process_stood_still_is_not_idle(clock: Clock) -> None:
    status = Status(clock, lambda: clock.cpu_s)
    status.phase(READING)
    for seconds, idle_s in ((1, 1), (1, 2), (300, 2), (1, 3), (GAP_S, 3 + GAP_S)):
        clock.now += seconds
        status.sample(100)
        assert status.beat().idle_s == idle_s

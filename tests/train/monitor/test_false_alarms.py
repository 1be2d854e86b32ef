"""No alarm while ranks get on, however slowly; and an alarm in time once one does not."""

import random
from collections.abc import Callable

import pytest

from tests.lib.ranks.simulated_ring import TIMEOUTS, Action, Script, SimulatedRing, Training
from train.monitor.heartbeat import GAP_S, READING, Pulse
from train.monitor.notes import Verdict

RUNS, LIMIT_S = 100, 4000.0
HANGS = ("building the model", READING, f"{READING} test", "evaluating test")


def run_slowly(seed: int) -> Verdict | None:
    """A training with slow builds, steps, evaluations and checkpoints, and pauses of the whole machine."""
    chance = random.Random(seed)
    pauses = tuple((at, chance.uniform(10, 300)) for at in sorted(chance.uniform(5, 250) for _ in range(2)))
    return SimulatedRing(Training(seed)).run(LIMIT_S, pauses)


@pytest.mark.integration  # ten seconds
def test_slow_runs_raise_no_alarm() -> None:
    alarms = {seed: verdict.line for seed in range(RUNS) if (verdict := run_slowly(seed)) is not None}
    assert alarms == {}


def test_without_samples_of_cpu_time_the_same_runs_raise_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin that must fail."""
    monkeypatch.setattr(Pulse, "sample", lambda pulse, limit_s: None)
    assert sum(run_slowly(seed) is not None for seed in range(20)) > 10


@pytest.mark.parametrize("phase", HANGS)
def test_a_rank_that_hangs_is_named_in_time(phase: str) -> None:
    for seed in range(5):
        rank = seed % 3
        ring = SimulatedRing(Training(seed, (rank, phase)))
        verdict = ring.run(LIMIT_S)
        assert verdict is not None
        assert verdict.late == (rank,)
        idle_s = ring.ranks[rank].pulse.beat().idle_s
        others_wait_s = min(each.pulse.beat().idle_s for each in ring.ranks)
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


@pytest.mark.parametrize("phase", HANGS)
def test_on_many_hosts_a_rank_that_hangs_is_named(phase: str, many_hosts: int) -> None:
    ring = SimulatedRing(Training(1, (13, phase)), many_hosts)
    verdict = ring.run(LIMIT_S)
    assert verdict is not None
    assert verdict.late == (13,)
    assert min(each.pulse.beat().idle_s for each in ring.ranks) <= 4.5 * TIMEOUTS.stall_s


@pytest.fixture
def clocks() -> dict[str, float]:
    return {"now": 0.0, "cpu": 0.0}


@pytest.fixture
def advance(clocks: dict[str, float]) -> Callable[[Pulse, float, float], float]:
    def advance(pulse: Pulse, seconds: float, cores: float) -> float:
        """The idle time after so many seconds in which so many cores were used."""
        for _ in range(int(seconds)):
            clocks["now"] += 1
            clocks["cpu"] += cores
            pulse.sample(limit_s=100)
        return pulse.beat().idle_s

    return advance


def test_cpu_time_is_progress_in_phases_of_computing_only(
    clocks: dict[str, float], advance: Callable[[Pulse, float, float], float]
) -> None:
    pulse = Pulse(lambda: clocks["now"], lambda: clocks["cpu"])
    pulse.does("building the model")
    assert advance(pulse, 50, 0.3) == 0
    assert advance(pulse, 20, 0.2) == 20
    assert advance(pulse, 10, 1) == 0
    assert advance(pulse, 40, 1) == 21  # 100 s after its begin it is taken for a loop without an end
    for begin in (pulse.enters, pulse.does):
        begin(f"{READING} test")
        assert advance(pulse, 20, 1) == 20
    pulse.enters("waiting for rank 0")
    assert advance(pulse, 20, 1) == 20


def test_time_in_which_the_process_stood_still_is_not_idle(clocks: dict[str, float]) -> None:
    pulse = Pulse(lambda: clocks["now"], lambda: clocks["cpu"])
    pulse.enters(READING)
    for now, idle_s in ((1, 1), (2, 2), (2 + 300, 2), (303, 3), (303 + GAP_S, 3 + GAP_S)):
        clocks["now"] = now
        pulse.sample(100)
        assert pulse.beat().idle_s == idle_s


def test_a_slow_phase_of_one_rank_is_not_that_of_another() -> None:
    """Two compute for long, and the third hangs in the same phase: it is named."""

    def script(pulse: Pulse, rank: int) -> Script:
        pulse.enters("joined")
        pulse.does("building the model")
        yield Action(1e9 if rank == 1 else 60, cores=0 if rank == 1 else 1)
        pulse.enters("waiting for rank 0")
        yield Action(is_collective=True)

    verdict = SimulatedRing(script).run(LIMIT_S)
    assert verdict is not None
    assert verdict.late == (1,)

"""For how long a rank may be silent before its guard ends it: longer while large libraries are loaded."""

import queue

import pytest

from train.monitor.heartbeat import Pulse
from train.monitor.monitor import LOADING, Watch
from train.monitor.rank_log import RunLog
from train.monitor.stall_detector import Timeouts
from train.monitor.watchdog_process import Guard

SILENCE_S = 4.0


class NotedGuard(Guard):
    """Notes the limits that the watch gives, in place of a process."""

    def __init__(self) -> None:
        self.silence_s = SILENCE_S
        self.limits_s: queue.Queue[float | None] = queue.Queue()

    def fed(self, line: str, last_note: object = None, silence_s: float | None = None, computes: bool = False) -> None:
        self.limits_s.put(silence_s)


@pytest.mark.parametrize(("phase", "limit_s"), [("", LOADING * SILENCE_S), ("building the model", SILENCE_S)])
def test_the_guard_is_patient_until_the_first_phase(phase: str, limit_s: float) -> None:
    pulse, guard = Pulse(), NotedGuard()
    if phase:
        pulse.enters(phase)
    watch = Watch(pulse, RunLog(), guard=guard, timeouts=Timeouts(6), remedy="go on")
    watch.start()
    assert guard.limits_s.get(timeout=120) == limit_s
    watch.stop()

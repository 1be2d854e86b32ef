"""Real ranks that are slow, or stopped together with their machine, and none is ended for it."""

import signal
import time
from pathlib import Path

import pytest

from tests.lib.commands import HOROVODRUN, horovodrun, succeeded
from tests.lib.ranks.running import marked, started, wait_until

pytestmark = pytest.mark.integration

TIMEOUT_S, BURN_S = 6, 13
RANKS = 3


def test_a_slow_model_builder_and_a_slow_evaluation_step_are_no_stall(root: Path) -> None:
    words = ("--model", "tests.lib.ranks.slow_model:slow", "--epochs", 1, "--stall-timeout", TIMEOUT_S)
    result = horovodrun(2, "train/main.py", "--data", root, "--run", "slow", *words, timeout_s=200, BURN_S=str(BURN_S))
    succeeded(result)


def test_a_paused_machine_is_no_stall(tmp_path: Path) -> None:
    ring = ("tests/lib/ranks/watched_ring.py", tmp_path, TIMEOUT_S, 0, "none")
    log = tmp_path / "log"

    def step() -> int:
        return max((int(path.name.split("-")[1]) for path in tmp_path.glob("step-*")), default=0)

    with started(*HOROVODRUN, "-np", RANKS, *ring, log=log, MARK=str(tmp_path)) as launcher:
        wait_until(lambda: all((tmp_path / f"{rank}.pid").exists() for rank in range(RANKS)), launcher)
        processes = marked(str(tmp_path))
        for process in processes:
            process.send(signal.SIGSTOP)
        time.sleep(2 * TIMEOUT_S)
        before = step()
        for process in processes:
            process.send(signal.SIGCONT)
        wait_until(lambda: step() > before + 100, launcher)  # of 0.1 s at least
        assert "ringslice" not in log.read_text()

"""The watch over thousands of ranks: the one that stalls is named, and the launcher has next to nothing to do."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.lib.commands import HOROVODRUN, run, succeeded
from tests.lib.ranks.running import started, wait_until

pytestmark = pytest.mark.chaos

HOSTS, LOCAL = 512, 8
TIMEOUT_S, LATE = 45, 2563
# names of this machine, each a host of its own to horovodrun
NAMES = (
    *("localhost", "127.0.0.1", "127.0.1", "127.1", "127.0.0.0x1", "127.0.0x1", "127.0x1", "0x7f.0.0.1"),
    *("0x7f.0.1", "0x7f.1", "0177.0.0.1", "0177.0.1", "0177.1", "2130706433", "0x7f000001", "017700000001"),
)
EACH = 4


def test_of_4096_ranks_the_one_that_stalls_is_named() -> None:
    words = ("--hosts", HOSTS, "--local", LOCAL, "--stall-timeout", TIMEOUT_S, "--late", LATE)
    found = json.loads(succeeded(run(sys.executable, "-m", "tests.lib.ranks.large_ring", *words, timeout_s=900)).stdout)
    assert found["late"] == [LATE], found
    # each takes the launcher 0.4 to 0.8 ms, by the processor
    assert found["steady_requests"] / found["steady_s"] < 12, found
    assert found["stalled_requests"] / found["verdict_s"] < 24, found
    assert found["verdict_s"] < 2.2 * TIMEOUT_S, found


def ring(folder: Path, unlucky: int, kind: str) -> list[object]:
    hosts = ",".join(f"{name}:{EACH}" for name in NAMES)
    horovodrun = (*HOROVODRUN, "-np", EACH * len(NAMES), "-H", hosts, "--network-interface", "lo")
    return [*horovodrun, "tests/lib/ranks/many_ranks.py", folder, 20, unlucky, kind]


def test_ctrl_c_of_64_processes_is_told_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(*ring(tmp_path, 0, "none"), log=log, PYTHONPATH=".", MARK=str(tmp_path)) as launcher:
        wait_until((tmp_path / "step-5").exists, launcher, timeout_s=200)
        launcher.send_signal(signal.SIGINT)
        launcher.wait(60)
    lines = [line for line in log.read_text().splitlines() if "ringslice:" in line]
    assert lines == ["[0]<stderr>:ringslice: interrupted; --resume goes on"]


@pytest.mark.parametrize(
    ("unlucky", "kind", "line"),
    [
        (
            37,
            "sleeps",
            r"rank 37 on \S+ is late: epoch 1, step 8, reading, without progress for \d+ s; all ranks end .*",
        ),
        (36, "stopped", r"rank 36 on \S+ \(process \d+\) was silent for 13 s, stopped or hung in epoch 1, .*"),
        (36, "killed", r"rank 36 on \S+ was killed or died without a word in epoch 1, .*"),
    ],
)
def test_of_64_processes_on_16_hosts_the_one_that_stalls_is_named(
    unlucky: int, kind: str, line: str, tmp_path: Path
) -> None:
    """Rank 36 is the one that puts the notes of its host."""
    told = run(*ring(tmp_path, unlucky, kind), timeout_s=400, PYTHONPATH=".")
    lines = [each for each in told.stderr.splitlines() if "ringslice:" in each]
    assert len(lines) == 1, told.stderr
    assert re.fullmatch(rf"\[\d+\]<stderr>:ringslice: error: {line}", lines[0]), lines
    assert told.returncode != 0

"""The watch over many processes on many hosts: one line names the rank that failed."""

import re
import signal
from pathlib import Path

import pytest

from tests.lib.commands import HOROVODRUN, PATIENCE_S, run
from tests.lib.ranks.running import started, wait_until

pytestmark = pytest.mark.chaos

# names of this machine, each a host of its own to horovodrun
NAMES = (
    *("localhost", "127.0.0.1", "127.0.1", "127.1", "127.0.0.0x1", "127.0.0x1", "127.0x1", "0x7f.0.0.1"),
    *("0x7f.0.1", "0x7f.1", "0177.0.0.1", "0177.0.1", "0177.1", "2130706433", "0x7f000001", "017700000001"),
)
EACH = 4


def ring(folder: Path, failing: int, kind: str) -> list[object]:
    hosts = ",".join(f"{name}:{EACH}" for name in NAMES)
    horovodrun = (*HOROVODRUN, "-np", EACH * len(NAMES), "-H", hosts, "--network-interface", "lo")
    return [*horovodrun, "tests/lib/ranks/watched_ring.py", folder, 20, failing, kind, "--step-s", 1]


def test_ctrl_c_of_64_processes_is_reported_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(*ring(tmp_path, 0, "none"), log=log, PYTHONPATH=".", MARK=str(tmp_path)) as launcher:
        wait_until((tmp_path / "step-5").exists, launcher, timeout_s=200)
        launcher.send_signal(signal.SIGINT)
        launcher.wait(PATIENCE_S)
    lines = [line for line in log.read_text().splitlines() if "ringslice:" in line]
    assert lines == ["[0]<stderr>:ringslice: interrupted; --resume goes on"]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("stopped", r"\(process \d+\) was silent for 13 s, stopped or hung in epoch 1, .*"),
        ("killed", r"was killed or died without a word in epoch 1, .*"),
    ],
)
def test_of_64_processes_on_16_hosts_the_one_that_fails_is_named(kind: str, line: str, tmp_path: Path) -> None:
    """Rank 36 puts the notes of its host."""
    result = run(*ring(tmp_path, 36, kind), timeout_s=400, PYTHONPATH=".")
    [found] = [each for each in result.stderr.splitlines() if "ringslice:" in each]
    assert re.fullmatch(rf"\[\d+\]<stderr>:ringslice: error: rank 36 on \S+ {line}", found)
    assert result.returncode != 0

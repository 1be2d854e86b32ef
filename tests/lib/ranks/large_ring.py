"""Many ranks in one process, on simulated hosts, at the real store of a launcher in a process of its own.

    python -m tests.lib.ranks.large_ring --hosts 512 --local 8 --steady-s 60 --stall-timeout 45

All ranks take steps; then one stalls. Prints, as JSON, the CPU time that the launcher used while they got on and from
then to the verdict, and the verdict. The ranks of a host share a board in memory of this process.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from train.monitor.heartbeat import READING, Pulse
from train.monitor.host_notes import BEAT_S, HostNotes
from train.monitor.kv_store import Letterbox
from train.monitor.notes import Note, Verdict
from train.monitor.stall_detector import Stalls, Timeouts

LAUNCHER = """
import sys
from horovod.runner.http.http_server import RendezvousServer

server = RendezvousServer()
print(server.start(), flush=True)
server.init([])
sys.stdin.read()
"""
STEP_S = 2.0


class CountingStore(Letterbox):
    """Counts the requests."""

    requests = 0

    def _ask(self, method: str, scope: str, key: str, body: bytes | None = None) -> bytes | None:
        self.requests += 1
        return super()._ask(method, scope, key, body)


class MemoryBoard:
    """What `train.monitor.host_board.HostBoard` does, for ranks of one process."""

    def __init__(self) -> None:
        self._notes: dict[str, tuple[float, dict[str, Any]]] = {}

    def put(self, name: str, note: dict[str, Any]) -> None:
        self._notes[name] = time.monotonic(), note

    def get(self, name: str, max_age_s: float = float("inf")) -> dict[str, Any] | None:
        at, note = self._notes.get(name, (0.0, None))
        return note if time.monotonic() - at < max_age_s else None

    def names(self, prefix: str) -> list[str]:
        return [name for name in self._notes if name.startswith(prefix)]


class Rank:
    """A rank as its watch drives it."""

    def __init__(self, store: Letterbox, board: MemoryBoard, rank: int, size: int, timeouts: Timeouts) -> None:
        self.pulse = Pulse()
        self.pulse.joins(rank, size)
        self._notes = HostNotes(store, board, timeouts.stall_s / 2)  # type: ignore[arg-type]
        self._stalls = Stalls(self._notes, timeouts, lambda: True)

    def beat(self) -> Verdict | None:
        beat = self.pulse.beat()
        self._notes.put(Note(beat, "hdfs://namenode/data/runs/nightly/logs/rank.log"))
        return self._stalls.verdict(beat, "")


@contextmanager
def launcher() -> Iterator[tuple[CountingStore, int]]:
    """The store of a launcher, and its process."""
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield CountingStore("127.0.0.1", int(process.stdout.readline())), process.pid
        process.kill()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(hosts: int, local: int, steady_s: float, timeout_s: float, late: int) -> dict[str, Any]:
    """Let rank ``late`` stall after ``steady_s``; what it cost, and what came of it."""
    size, timeouts = hosts * local, Timeouts(timeout_s)
    with launcher() as (store, pid):
        boards = [MemoryBoard() for _ in range(hosts)]
        ranks = [Rank(store, boards[rank // local], rank, size, timeouts) for rank in range(size)]
        begun, used = time.monotonic(), cpu_s(pid)
        stalled, used_steady, requests, step, verdict = 0.0, 0.0, 0, 0, None
        while verdict is None:
            now = time.monotonic()
            if not stalled and now - begun >= step * STEP_S:
                step += 1
                if now - begun >= steady_s:
                    stalled, used_steady, requests = now, cpu_s(pid), store.requests
                for number, rank in enumerate(ranks):
                    rank.pulse.enters(READING, 1, step)
                    if not stalled or number != late:
                        rank.pulse.enters("stepping")
            for rank in ranks:
                verdict = rank.beat() or verdict
            if stalled and now - stalled > 10 * timeout_s:
                break
            time.sleep(max(0.0, now + BEAT_S - time.monotonic()))
        ended, used_at_all = time.monotonic(), cpu_s(pid)
    return {
        "ranks": size,
        "hosts": hosts,
        "steady_s": round(stalled - begun, 1),
        "steady_cores": round((used_steady - used) / (stalled - begun), 5),
        "steady_requests": requests,
        "verdict_s": round(ended - stalled, 1),
        "stalled_cores": round((used_at_all - used_steady) / (ended - stalled), 5),
        "stalled_requests": store.requests - requests,
        "late": list(verdict.late) if verdict else [],
        "line": verdict.line if verdict else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=512)
    parser.add_argument("--local", type=int, default=8)
    parser.add_argument("--steady-s", type=float, default=60.0)
    parser.add_argument("--stall-timeout", type=float, default=45.0)
    parser.add_argument("--late", type=int, default=None)
    options = parser.parse_args()
    late = options.hosts * options.local * 5 // 8 + 3 if options.late is None else options.late
    print(json.dumps(measure(options.hosts, options.local, options.steady_s, options.stall_timeout, late)))


if __name__ == "__main__":
    main()

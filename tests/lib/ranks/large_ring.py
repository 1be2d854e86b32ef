"""Many ranks in one process and in simulated time, on hosts that share one store.

    python -m tests.lib.ranks.large_ring --hosts 512 --local 8 --stall-timeout 45 --late 2563

All ranks take steps for a minute; then rank LATE stalls. Prints, as JSON, the requests to the store while they got on
and from then to the verdict, and the verdict. The ranks of a host share a board in memory.
"""

import argparse
import json
from itertools import count
from typing import Any

from tests.lib.ranks.simulated_ring import MEET, Action, Script, SimulatedRing
from train.monitor.heartbeat import READING, Status
from train.monitor.stall_detector import Timeouts

STEP_S, STEADY_STEPS = 2.0, 30


def measure(hosts: int, local: int, timeout_s: float, late: int) -> dict[str, Any]:
    """Let rank ``late`` stall after STEADY_STEPS; what it cost, and what came of it."""
    stalled, requests = 0.0, 0

    def script(status: Status, rank: int) -> Script:
        nonlocal stalled, requests
        for step in count(1):
            status.phase(READING, 1, step)
            if rank == late and step > STEADY_STEPS:
                stalled, requests = ring.now, ring.store.requests
                yield Action(seconds=1e9)
            yield Action(STEP_S)
            status.phase("stepping")
            yield MEET

    ring = SimulatedRing(script, hosts * local, local, Timeouts(timeout_s))
    begun = ring.now
    verdict = ring.run(STEADY_STEPS * 2 * STEP_S + 10 * timeout_s)
    assert verdict is not None
    return {
        "steady_s": stalled - begun,
        "steady_requests": requests,
        "verdict_s": ring.now - stalled,
        "stalled_requests": ring.store.requests - requests,
        "late": list(verdict.late),
        "line": verdict.line,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("hosts", "local", "late"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--stall-timeout", type=float, required=True)
    options = parser.parse_args()
    print(json.dumps(measure(options.hosts, options.local, options.stall_timeout, options.late)))


if __name__ == "__main__":
    main()
